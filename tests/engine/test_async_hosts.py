"""AsyncEngine where it lives: interpreters that end without closing it, forks, Ctrl-C, a Jupyter kernel and its running loop."""
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

BEGIN = """
import asyncio, os, signal, sys, threading, time
from paged_edu import LLM, AsyncEngine, RequestFailedError, SamplingParams
LONG = SamplingParams(max_tokens=400, ignore_eos=True)
SHORT = SamplingParams(max_tokens=3, ignore_eos=True, temperature=0)
engine = AsyncEngine("tiny-shakespeare", num_gpu_blocks_override=64)

async def text(params=SHORT):
    return "".join([o.outputs[0].delta async for o in engine.generate("ROMEO:", params)])
"""


def run(code, *options):
    """``code`` in an interpreter of its own."""
    return subprocess.run([sys.executable, *options, "-c", BEGIN + textwrap.dedent(code)], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("code", [
    """
    async def main():
        async for output in engine.generate("ROMEO:", LONG):
            break
    asyncio.run(main())
    """,
    """
    async def main():
        asyncio.ensure_future(text(LONG))
        await asyncio.sleep(0.1)
        sys.exit(0)
    asyncio.run(main())
    """,
    """
    other = AsyncEngine("tiny-shakespeare", num_gpu_blocks_override=8)
    other.close()
    other.close()
    thread = engine._thread._thread
    del engine, text
    thread.join(10)
    assert not thread.is_alive()
    """,
], ids=["idle", "sys.exit", "closed and deleted"])
def test_the_interpreter_ends_without_a_word_when_nobody_closes(code):
    done = run(code, "-W", "error", "-X", "dev")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_interpreter_ends_while_a_request_runs():
    done = run("""
    loop, stream = asyncio.new_event_loop(), engine.generate("ROMEO:", LONG)
    loop.run_until_complete(anext(stream))              # neither loop nor stream is closed
    print(engine.num_unfinished_requests)
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_after_a_fork_the_child_gets_a_clear_error_and_the_parent_serves_on():
    done = run("""
    import warnings
    warnings.simplefilter("ignore")                             # newer Pythons warn of forks with threads
    asyncio.run(text())
    child = os.fork()
    if child == 0:
        for use in (text, engine.memory_report, engine.drain, lambda: engine.abort("a")):
            try:
                asyncio.run(use())
            except RuntimeError as error:
                assert "make one in each process" in str(error), error
            else:
                os._exit(2)
        engine.close()
        asyncio.run(engine.aclose())
        sys.exit(7)                                             # the end of an interpreter, too
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(status, asyncio.run(text()) == asyncio.run(text()))
    """)
    assert (done.stdout, done.stderr) == ("7 True\n", "")


def test_ctrl_c_drops_the_request_and_the_engine_serves_on():
    done = run("""
    async def main():
        soon = None
        async for output in engine.generate("ROMEO:", LONG):
            if soon is None and len(output.outputs[0].token_ids) >= 3:
                soon = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
                soon.start()

    async def left():
        return (await engine.memory_report()).num_sequences, engine.num_unfinished_requests

    for _ in range(3):
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print("interrupted", *asyncio.run(left()))
    loop = asyncio.new_event_loop()                             # where nobody turns Ctrl-C into a cancellation
    try:
        loop.run_until_complete(main())
    except KeyboardInterrupt:
        for task in asyncio.all_tasks(loop):
            task.cancel()
            loop.run_until_complete(asyncio.wait([task]))
    loop.close()
    print("interrupted", *asyncio.run(left()), len(asyncio.run(text())) > 0)
    """)
    assert (done.stdout, done.stderr) == ("interrupted 0 0\n" * 3 + "interrupted 0 0 True\n", "")


@pytest.fixture(scope="module")
def kernel():
    manager = pytest.importorskip("jupyter_client").KernelManager(kernel_name="python3")
    manager.start_kernel(env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"})
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel()


def cell(kernel, code, interrupt_after=None):
    """``(what a cell prints, the name of its error or None)``; Ctrl-C once it has printed ``interrupt_after``."""
    manager, client = kernel
    printed, error = [], []

    def output(message):
        content = message["content"]
        if message["msg_type"] == "stream":
            printed.append(content["text"])
            if interrupt_after is not None and interrupt_after in "".join(printed):
                time.sleep(0.2)
                manager.interrupt_kernel()
        elif message["msg_type"] == "error":
            error.append(content["ename"])
        elif message["msg_type"] in ("execute_result", "display_data"):
            printed.append(content["data"].get("text/plain", ""))

    client.execute_interactive(textwrap.dedent(code), timeout=90, output_hook=output)
    return "".join(printed), error[0] if error else None


def test_a_notebook(kernel):
    """One story, cell after cell: top-level ``async for``, the sync LLM inside the running loop, Ctrl-C, leaving, closing."""
    assert cell(kernel, BEGIN) == ("", None)
    shown, error = cell(kernel, """
    pieces = []
    async for output in engine.generate("ROMEO:", SHORT):
        pieces.append(output.outputs[0].delta)
    print("".join(pieces) == output.outputs[0].text, output.finished)
    """)
    assert (shown, error) == ("True True\n", None)
    assert cell(kernel, """
    llm = LLM("tiny-shakespeare", num_gpu_blocks_override=64)
    one = llm.generate("ROMEO:", SHORT, use_tqdm=False)[0].outputs[0].text
    two = "".join(o.outputs[0].delta for o in llm.stream("ROMEO:", SHORT))
    three, four = await asyncio.gather(text(), text())
    print(one == two == three == four)
    """) == ("True\n", None)
    shown, error = cell(kernel, """
    async for output in engine.generate("ROMEO:", LONG):
        if len(output.outputs[0].token_ids) == 3:
            print("three", flush=True)
    """, interrupt_after="three")
    assert shown.startswith("three")
    assert error in ("CancelledError", "KeyboardInterrupt")
    assert cell(kernel, """
    print((await engine.memory_report()).num_sequences, engine.num_unfinished_requests, await text() == one)
    """) == ("0 0 True\n", None)
    shown, error = cell(kernel, """
    for output in llm.stream("ROMEO:", LONG):
        if len(output.outputs[0].token_ids) == 3:
            print("three", flush=True)
    """, interrupt_after="three")
    assert error == "KeyboardInterrupt"
    assert cell(kernel, """
    async for output in engine.generate("ROMEO:", LONG):
        break
    print((await engine.memory_report()).num_sequences, llm.generate("ROMEO:", SHORT, use_tqdm=False)[0].outputs[0].text == one)
    """) == ("0 True\n", None)
    assert cell(kernel, """
    task = asyncio.ensure_future(text(LONG))
    await asyncio.sleep(0.1)
    engine.close()
    try:
        await task
    except RequestFailedError as error:
        print(error)
    """) == ("request 'async-6': the engine was closed\n", None)


README = Path(__file__).parents[2] / "README.md"


@pytest.mark.skipif(not README.is_file(), reason="needs the source tree")
def test_the_example_of_the_readme():
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "AsyncEngine" in block]
    done = subprocess.run([sys.executable, "-W", "error", "-c", example], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ROMEO:")
    assert "\n\nJULIET:" in done.stdout
    assert "\n0 sequences in " in done.stdout
