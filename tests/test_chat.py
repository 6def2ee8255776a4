"""``paged-edu chat`` as its user meets it: through a pipe, and in a terminal (a pseudo-terminal with a real Ctrl-C)."""
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest

from paged_edu import LLM, SamplingParams, cli
from paged_edu.chat import Chat
from paged_edu.model.loader import resolve

TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
COMMAND = [sys.executable, "-c", "from paged_edu.cli import main; raise SystemExit(main())", "chat"]
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The embedded model with a chat template: it answers in Shakespeare's voice, whatever it is asked."""
    folder = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(resolve("tiny-shakespeare"), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


@pytest.fixture(scope="module")
def llm(model):
    with LLM(model, num_gpu_blocks_override=32) as llm:
        yield llm


def pipe(model, text, *flags):
    return subprocess.run([*COMMAND, "--model", model, "--temperature", "0", *flags], input=text, capture_output=True, text=True, timeout=120)


def test_a_message_a_line_through_a_pipe(model, llm):
    done = pipe(model, "Speak!\n\nAnd again.\n", "--max-tokens", "12", "--ignore-eos", "--system", "Be brief.")
    assert done.returncode == 0, done.stderr
    params, messages, expected = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), [{"role": "system", "content": "Be brief."}], ""
    for message in ("Speak!", "And again."):
        messages.append({"role": "user", "content": message})
        answer = llm.chat(messages, params, use_tqdm=False)[0].outputs[0].text
        messages.append({"role": "assistant", "content": answer})
        expected += answer + "\n"
    assert done.stdout == expected, "the answers and nothing else"
    assert done.stderr == f"paged-edu: loading {model} ...\n"


def test_penalties_and_logprobs_reach_the_model(model, llm):
    flags = ("--max-tokens", "5", "--ignore-eos", "--repetition-penalty", "1.8", "--logit-bias", "199=-50", "--logprobs", "1")
    done = pipe(model, "Speak!\n", *flags)
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, repetition_penalty=1.8, logit_bias={199: -50}, logprobs=1)
    answer = llm.chat([{"role": "user", "content": "Speak!"}], params, use_tqdm=False)[0].outputs[0]
    text, table = done.stdout.split(answer.text + "\n", 1)
    assert text == ""
    assert [line.split("  ")[0] for line in table.splitlines()[1:6]] == [
        repr(entry[token].decoded_token) for entry, token in zip(answer.logprobs, answer.token_ids)]


def test_commands(model):
    text = "/help\n/system\n/system Be kind.\n/system\n/undo\nSpeak!\n/undo\n/reset\n/dance\n/exit\nnot read\n"
    done = pipe(model, text, "--max-tokens", "3", "--ignore-eos")
    assert done.returncode == 0
    said = [line.removeprefix("paged-edu: ") for line in done.stderr.splitlines()[1:]]
    assert said == ["no system message; the model's template may have its own", "system: Be kind.", "system: Be kind.",
                    "there is nothing to take back", "taken back: Speak!", "the conversation is forgotten",
                    "there is no command /dance; /help lists them"]
    assert "/undo" in done.stdout
    assert len(done.stdout.splitlines()) >= 6


def test_the_oldest_turns_are_left_out_with_a_note(llm, capsys):
    """Never silently, and a message that is too long alone is refused; the conversation goes on."""
    chat = Chat(llm, SamplingParams(temperature=0, max_tokens=60, ignore_eos=True), "Be brief.", False)
    assert chat.limit == 512
    for i in range(9):
        chat._turn(f"Say it {i}!")
    err = capsys.readouterr().err
    assert "the oldest 1 turn left out: the conversation is longer than 512 tokens" in err
    assert 4 <= len(chat.turns) < 9
    assert chat.turns[-1][0] == "Say it 8!"
    assert chat.turns[0][0] != "Say it 0!"
    assert llm.tokenizer.decode(chat._fit("x")).startswith("[system] Be brief.\n[user] Say it")
    turns = list(chat.turns)
    chat._turn("word " * 600)
    err = capsys.readouterr().err
    assert re.search(r"a prompt of \d+ tokens; there is room for 511. It is not sent", err)
    assert chat.turns == turns
    chat._turn("Again!")
    assert chat.turns[-1][0] == "Again!"


def test_no_chat_template_and_no_model(capsys, monkeypatch):
    assert cli.main(["chat", "--model", "tiny-shakespeare"]) == 2
    assert "tiny-shakespeare has no chat template" in capsys.readouterr().err
    from paged_edu.engine import build
    from paged_edu.model.spec import ModelLoadError

    def missing(name):
        raise ModelLoadError(f"{name!r} is no short name")

    monkeypatch.setattr(build, "resolve", missing)
    assert cli.main(["chat"]) == 2
    assert "smollm2-135m-instruct is not here: get it with paged-edu pull smollm2-135m-instruct" in capsys.readouterr().err


def test_escape_sequences_of_a_model_are_only_pictures(llm, capsys, monkeypatch):
    from paged_edu.chat_view import PlainView

    with PlainView() as view:
        view.show("a\x1b[2Jb\r", "")
    assert capsys.readouterr().out == "a␛[2Jb␍\n"


class Terminal:
    """The command under a pseudo-terminal."""

    def __init__(self, model, *flags, **env):
        import pty

        master, slave = pty.openpty()
        import fcntl
        import struct
        import termios

        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [*COMMAND, "--model", model, "--temperature", "0", *flags], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), env={**os.environ, "TERM": "xterm", **env},
        )
        os.close(slave)
        self.master, self.raw, self.at = master, "", 0

    def expect(self, pattern, seconds=60):
        """Read until the pattern comes after what was expected before; what came, without escape sequences."""
        end = time.monotonic() + seconds
        while not (found := re.compile(pattern).search(ANSI.sub("", self.raw), self.at)):
            assert time.monotonic() < end, f"{pattern!r} did not come: {self.raw[-2000:]!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.raw += os.read(self.master, 65536).decode(errors="replace")
                except OSError:
                    assert pattern == "$", f"{pattern!r} did not come before the end: {self.raw[-2000:]!r}"
                    break
        text = ANSI.sub("", self.raw)
        came, self.at = text[self.at : found.end() if found else len(text)], found.end() if found else len(text)
        return came

    def send(self, text):
        os.write(self.master, text.encode())

    def close(self):
        self.process.send_signal(signal.SIGKILL) if self.process.poll() is None else None
        self.process.wait(20)
        os.close(self.master)


@pytest.fixture
def terminal(model):
    opened = []

    def start(*flags, **env):
        opened.append(Terminal(model, *flags, **env))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
def test_ctrl_c_stops_the_answer_and_not_the_program(terminal):
    session = terminal("--max-tokens", "400", "--ignore-eos")
    session.expect("\n> ")
    session.send("Speak!\n")
    session.expect("[0-9.]+ tokens/s")              # live, while it streams
    session.send("\x03")
    came = session.expect(r"\((\d+) tokens?, [0-9.]+ tokens/s, \d+/\d+ KV blocks, 0 of \d+ prompt tokens cached; stopped\)\s+> ")
    assert int(re.search(r"(\d+) tokens?, [0-9.]+ tokens/s, \d+/\d+ KV blocks, [^;]*; stopped", came)[1]) < 400
    session.send("/undo\n")
    session.expect("taken back: Speak!")            # it was kept in the history
    session.send("/exit\n")
    assert session.process.wait(20) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
@pytest.mark.parametrize("key", ["\x03", "\x04"])
def test_ctrl_c_and_ctrl_d_at_the_prompt_leave(terminal, key):
    session = terminal("--max-tokens", "5", "--ignore-eos", NO_COLOR="1")
    session.expect("\n> ")
    session.send("Speak!\n")
    came = session.expect(r"\(5 tokens, [^)]*, cut at --max-tokens\)\s+> ")
    assert "Speak!" in came
    assert "\x1b[2m" not in session.raw, "NO_COLOR"
    time.sleep(0.5)             # between showing its prompt and waiting for a key, Python's input() does not see a signal
    session.send(key)
    assert session.process.wait(30) == 0
    assert "Traceback" not in session.raw


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_long_answer_in_a_terminal_is_whole(terminal, llm, term):
    session = terminal("--max-tokens", "150", "--ignore-eos", TERM=term)
    session.expect("\n> ")
    session.send("Speak!\n")
    session.expect(r"\(150 tokens, .*cut at --max-tokens\)\s+> ")
    answer = llm.chat([{"role": "user", "content": "Speak!"}], SamplingParams(temperature=0, max_tokens=150, ignore_eos=True), use_tqdm=False)
    screen = final_screen(session.raw)
    assert " ".join(answer[0].outputs[0].text.split()) in " ".join(screen.split())
    assert ("\x1b[2K" in session.raw) == (term == "xterm")


def final_screen(raw):
    """What is left on an endless sheet after the cursor movements that rich uses: up a line, and erase a line."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x1b]|\x1b", raw):
        if part.startswith("\x1b[") and part.endswith("A"):
            row = max(0, row - int(part[2:-1] or 1))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif not part.startswith("\x1b"):
            lines[row] = lines[row].ljust(column)[:column] + part + lines[row][column + 1 :]
            column += 1
    return "\n".join(lines)
