"""The knowledge checks: their structure, their HTML, and every number in them that a program can compute."""
from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from raced import By
from solutions import ALL, NAMES

from paged_edu import lengths
from paged_edu.attention.cache import bytes_per_block
from paged_edu.core.block_table import num_blocks_for
from paged_edu.core.buddy import BuddyAllocator
from paged_edu.core.contiguous import ContiguousKVManager
from paged_edu.core.kv_manager import AllocStatus
from paged_edu.core.paged import PagedKVManager
from paged_edu.core.plan import Branch, StepResult
from paged_edu.core.scheduler import Scheduler, SchedulerConfig
from paged_edu.core.sequence import Request, Sequence
from paged_edu.model.llama import Llama
from paged_edu.model.loader import load_spec, resolve
from paged_edu.sim.panels import crossing, published
from paged_edu.sim.presets import PAPER_SERVERS
from paged_edu.viz import exercises, questions
from paged_edu.viz.card import Card, Fold, prose
from paged_edu.viz.check import ask, drill, hint, quiz, task
from paged_edu.viz.exercises.drills import DRILLS
from paged_edu.viz.exercises.lesson_01 import MODELS
from paged_edu.viz.exercises.lesson_05 import OUTPUTS
from paged_edu.viz.exercises.pieces import stop_case
from paged_edu.viz.fake_engine import FakeEngine, trace24
from paged_edu.viz.layer_walk import layer_walk
from paged_edu.viz.race import race

QUESTIONS = [question for lesson in exercises.LESSONS for question in questions.of_lesson(lesson)[0].values()]
IDS = [question.name for question in QUESTIONS]
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@pytest.mark.parametrize("lesson", exercises.LESSONS)
def test_at_least_five_a_lesson(lesson):
    found, cells = questions.of_lesson(lesson)
    assert len(found) >= 5
    assert list(found) == [f"{lesson}.{i}" for i in range(1, len(found) + 1)]
    assert {question.cell for question in found.values()} == {*cells}, "every cell that is named answers a question"
    assert all(cell.startswith(f"{lesson}-") and re.fullmatch(r"[a-z0-9-]+", cell) for cell in cells)
    assert len({*cells.values()}) == len(cells)


@pytest.mark.parametrize("question", QUESTIONS, ids=IDS)
def test_structure(question):
    assert sum(option.right for option in question.options) == 1
    assert 3 <= len(question.options) <= 4
    assert len({option.text for option in question.options}) == len(question.options)
    for option in question.options:
        assert option.text.endswith(".")
        assert len(option.why) > 20, "every option says why"
        assert option.why.endswith((".", ")"))
    assert question.text.endswith("?")
    assert question.shuffled() == question.shuffled(), "the same order every time: stored outputs are compared"
    assert sorted(map(repr, question.shuffled())) == sorted(map(repr, question.options))


def test_the_right_option_stands_in_different_places():
    places = [next(i for i, option in enumerate(question.shuffled()) if option.right) for question in QUESTIONS]
    assert all(places.count(i) > len(places) / 8 for i in range(4))


def test_a_lesson_that_asks_has_the_cells_that_answer():
    """Checked as soon as a lesson uses `quiz` or `ask`: the cell ids exist, and a heading has the words that the feedback names."""
    for lesson in exercises.LESSONS:
        for path in NOTEBOOKS.glob(f"{lesson}_*.ipynb"):
            notebook = json.loads(path.read_text(encoding="utf-8"))
            sources = {cell["id"]: "".join(cell["source"]) for cell in notebook["cells"]}
            text = "\n".join(sources.values())
            if f'quiz("{lesson}")' in text or f'ask("{lesson}.' in text:
                headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
                for cell, words in questions.of_lesson(lesson)[1].items():
                    assert cell in sources, f"{path.name} has no cell {cell}"
                    assert any(words in heading for heading in headings), f"{path.name} has no heading {words!r}"


class Strict(HTMLParser):
    """Raises unless every tag is closed, in the right order."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.attributes = [], [], []

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.seen.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parsed(html):
    page = Strict()
    page.feed(html)
    page.close()
    assert not page.open
    return page


CARDS = {
    **{f"quiz {lesson}": quiz(lesson) for lesson in exercises.LESSONS}, **{f"hint {name}": hint(name) for name in NAMES},
    **{f"task {name}": task(name) for name in NAMES}, **{f"drill {name}": drill(name, 3, answer=True) for name in [*NAMES, *DRILLS]},
}


@pytest.mark.parametrize("what", CARDS)
def test_html_is_well_formed_and_stands_alone(what):
    html = CARDS[what].html()
    page = parsed(html)
    assert {*page.seen} <= {"div", "p", "strong", "details", "summary", "code", "em", "pre"}
    assert {name for name, _ in page.attributes} <= {"style"}, "no script, no link, no picture from elsewhere"
    assert "http" not in html
    assert "url(" not in html
    assert "`" not in html
    assert "background:#" not in html
    assert not re.search(r"(?<![-\w])color:#", html), "ink and ground are the page's own"
    bundle = CARDS[what]._repr_mimebundle_()
    assert bundle == {"text/html": html, "text/plain": str(CARDS[what])}


def test_options_are_details_and_say_so_in_words_and_signs():
    card = ask("03.2").html()
    assert card.count("<details") == card.count("<summary") == 4
    assert card.count("✓ Right.") == 1
    assert card.count("✗ No.") == 3
    assert card.count("You saw it under “From position to slot”.") == 4
    elsewhere = ask("00.3").html()
    assert elsewhere.count("You saw it under “How well is the memory used?”.") == 2
    assert elsewhere.count("You saw it under “How to read the grid”.") == 1


def test_text_is_escaped():
    card = Card("<b>&", ['"<script>" `a < b` 2*3*4 *new*', Fold("x<y", "two\n  lines <i>")])
    html = card.html()
    parsed(html)
    assert "<script>" not in html
    assert "<i>" not in html
    assert "<code>a &lt; b</code> 2*3*4 <em>new</em>" in html
    assert "two\n  lines &lt;i&gt;" in html
    assert prose("a*b and c*d") == "a*b and c*d"


@pytest.mark.parametrize("call", [lambda: ask("03.9"), lambda: ask("14.1"), lambda: quiz("99"), lambda: hint("03.a", 4), lambda: hint("x"),
                                  lambda: drill("03.q"), lambda: drill("03.a", "1"), lambda: task("03.c"), lambda: hint("03.a", True)])
def test_unknown_names_raise_and_say_what_there_is(call):
    with pytest.raises(ValueError, match=r"there (is|are) no|must be"):
        call()


@pytest.mark.parametrize("name", [*NAMES, *DRILLS])
def test_drills_are_seeded(name):
    assert str(drill(name, 5)) == str(drill(name, 5))
    assert len({str(drill(name, seed, answer=True)).partition("\n")[2] for seed in range(8)}) >= 3
    assert "Answer: " in str(drill(name, 5, answer=True))
    assert "Answer: " not in str(drill(name, 5))


# -- numbers ---------------------------------------------------------------------------------------------------------------------------
def told(name):
    """Everything that a question says."""
    question = questions.of_lesson(name[:2])[0][name]
    return "\n".join([question.text, *(f"{option.text} {option.why}" for option in question.options)])


def says(name, *numbers):
    for number in numbers:
        assert re.search(rf"(?<![\d.,]){re.escape(str(number))}(?![\d]|[.,]\d)", told(name)), f"{name} does not say {number}"


def percent(share, digits=1):
    return f"{100 * share:.{digits}f} %"


def of(name, dtype):
    return next(spec for spec in MODELS if spec.architecture == name and spec.dtype == dtype)


def per_token(spec):
    return bytes_per_block(spec.num_layers, spec.num_kv_heads, 1, spec.head_dim, spec.dtype)


def advance(scheduler):
    output = scheduler.schedule()
    branches = {}
    for item in output.scheduled:
        branches.setdefault(item.request_id, []).extend([Branch(item.seq_id, (7,))] * item.num_samples)
    scheduler.update(output, StepResult({request_id: tuple(items) for request_id, items in branches.items() if items}))
    return output


def test_numbers_of_lesson_00():
    trace = trace24()
    engine = trace.engine()
    engine.step()
    report = engine.scheduler.manager.report()
    says("00.1", sum(prompt for prompt, _ in trace.requests))
    says("00.3", 3 * trace.max_model_len, trace.num_slots)
    says("00.2", report.num_used_blocks, trace.num_blocks, percent(report.token_states / report.total, 0))
    preempted = ()
    while not preempted:
        preempted = engine.step().preempted
    assert preempted == ("23",), "X, the 24th to arrive"
    says("00.4", engine.scheduler.step)
    while engine.has_unfinished_requests():
        engine.step()
    slabs = trace.engine("orca-max")
    while slabs.has_unfinished_requests():
        slabs.step()
    steps = slabs.scheduler.step
    says("00.5", steps, engine.scheduler.step, f"{steps / engine.scheduler.step:.1f}")


def test_a_paged_run_computes_more_where_requests_are_preempted():
    """What 00.5 says of its last option: no fewer tokens are computed; more are."""
    computed = {}
    for kv_manager in ("paged", "orca-max"):
        engine = trace24().engine(kv_manager)
        computed[kv_manager] = 0
        while engine.has_unfinished_requests():
            computed[kv_manager] += engine.step().num_tokens
    assert computed["paged"] > computed["orca-max"] == sum(prompt + output - 1 for prompt, output in trace24().requests)


def test_numbers_of_lesson_01():
    llama, opt = of("Llama-3-8B", torch.bfloat16), of("OPT-13B", torch.float16)
    says("01.2", f"{per_token(llama):,}", f"{per_token(llama) * llama.num_heads // llama.num_kv_heads:,}", llama.num_heads // llama.num_kv_heads)

    def step_ms(batch):     # fitted on Fig. 1 of the paper
        return 26.24 + 0.419 * batch

    says("01.4", percent(step_ms(16) / step_ms(8) - 1, 0), percent(2 * step_ms(8) / step_ms(16) - 1, 0), 0.419)
    assert step_ms(30.4) / step_ms(7) == pytest.approx(4 / 3, abs=0.02), "a third longer"
    budget = 12 * 2**30
    says("01.3", f"{per_token(opt):,}", budget // (2048 * per_token(opt)), budget // (500 * per_token(opt)), f"{2048 * per_token(opt) / 2**30}")


def test_numbers_of_lesson_02():
    slots, reserved = 15_728, 2048
    manager = ContiguousKVManager(slots, 1, "max", reserved)
    count = 0
    while manager.status(request := Request(str(count), tuple(range(20)))) is AllocStatus.OK:
        manager.admit(Sequence(count, request, 0, list(range(20))), 20)
        count += 1
    free = manager.buddy.num_free
    says("02.2", count, f"{free:,}", f"{slots:,}", f"{free // 20}", percent(free / slots, 0))
    oracle = trace24().engine("orca-oracle")
    while oracle.scheduler.step < 31:
        oracle.step()
    report = oracle.scheduler.manager.report()
    assert (oracle.scheduler.manager.buddy.num_free, report.internal) == (0, len(oracle.scheduler.running)), "all that is external is rounded up"
    says("02.3", report.reservation, report.external, report.total, report.token_states, report.internal)
    grow = ContiguousKVManager(4096, 1, "grow", 2048)
    request = Request("A", tuple(range(16)), max_tokens=2000)
    seq = Sequence(0, request, 0, list(range(1500)))
    grow.admit(seq, 16)
    held = 0
    blocker = Sequence(1, Request("B", (1,)), 0, [1])
    while grow.table(seq)[-1] - grow.table(seq)[0] + 1 < 1024:
        size = len(grow.table(seq))
        blocker.seq_id += 1     # whoever sits on the buddy makes it move
        grow.buddy.allocate((size - 1).bit_length())
        seq.num_computed_tokens = size
        copies = grow.reserve([seq], [1])
        held = size + len(grow.table(seq))
        grow.commit(seq, size)
    says("02.5", f"{grow.num_copied_blocks:,}", f"{held:,}", len(copies))
    buddies = BuddyAllocator(64)
    for _ in range(4):
        buddies.allocate(4)
    buddies.free(16)
    buddies.free(32)
    says("02.4", buddies.num_free)
    assert buddies.allocate(5) is None


def test_numbers_of_lesson_03():
    llama = of("Llama-3-8B", torch.bfloat16)
    entries = num_blocks_for(8192, 16)
    says("03.5", entries, f"{entries * 4 // 2**10} KiB", f"{8192 * per_token(llama) // 2**30} GiB", f"{8192 * 4 // 2**10} KiB",
         f"{16 * per_token(llama) // 2**20} MiB", f"{entries * 4 * llama.num_layers // 2**10} KiB", llama.num_layers)
    manager = PagedKVManager(8, 4)
    scheduler = Scheduler(SchedulerConfig(64), manager)
    scheduler.add(Request("A", tuple(range(7)), max_tokens=9))
    tables = {}
    for _ in range(4):
        for item in advance(scheduler).scheduled:
            tables[item.seq_len - 1] = len(item.block_table)
    assert (tables[7], tables[8]) == (2, 3), "the block comes with position 8"
    small = Scheduler(SchedulerConfig(64), PagedKVManager(8, 16))
    small.add(Request("A", tuple(range(16)), max_tokens=1))
    assert len(advance(small).scheduled[0].block_table) == 1
    assert not small.has_unfinished()


def until_first_token(budget):
    """Milliseconds by the times that the lesson quotes, from the arrival of 1,000 tokens of a prompt beside three decodes."""
    server = FakeEngine(70, 16, 2048, budget, max_num_seqs=8)
    server.add([(8, 60)] * 3)
    server.step(), server.step()
    server.add([(1000, 8)])
    total, output = 0.0, None
    while output is None or not output.scheduled[-1].num_samples:
        output = server.step()
        total += np.interp(output.num_tokens, (1, 32, 64, 128, 256, 512, 1024, 2048), (17.5, 18.0, 18.8, 25.1, 31.9, 66.9, 131.2, 238.0))
    return total


def test_numbers_of_lesson_05():
    scheduler = Scheduler(SchedulerConfig(64, max_num_seqs=4), PagedKVManager(200, 4))
    for i, tokens in enumerate(OUTPUTS):
        scheduler.add(Request(str(i), (i,), max_tokens=tokens))
    while scheduler.has_unfinished():
        advance(scheduler)
    says("05.1", scheduler.step, sum(max(OUTPUTS[i : i + 4]) for i in range(0, 12, 4)))
    mixed = Scheduler(SchedulerConfig(64), PagedKVManager(200, 4))
    for i in range(3):
        mixed.add(Request(str(i), (i,), max_tokens=9))
    advance(mixed)
    mixed.add(Request("long", tuple(range(50)), max_tokens=9))
    output = advance(mixed)
    says("05.3", sum(item.num_samples for item in output.scheduled), output.num_tokens, 49)
    one = Scheduler(SchedulerConfig(64, max_num_seqs=1, max_num_batched_tokens=1), PagedKVManager(50, 4))
    one.add(Request("A", tuple(range(11)), max_tokens=7))
    while one.has_unfinished():
        advance(one)
    assert one.step == 11 + 7 - 1
    says("05.4", f"{until_first_token(64):.0f}", f"{until_first_token(2048):.0f}")
    line = Scheduler(SchedulerConfig(64), PagedKVManager(12, 4))
    for name, blocks in zip("ABC", (8, 6, 2)):
        line.add(Request(name, tuple(range(4 * blocks - 2)), max_tokens=9))
    assert advance(line).admitted == ("A",)
    says("05.5", 12 - 8, 6, 2)


def forked(prompt, n, tokens):
    """``(copies, blocks in use, blocks without sharing)`` when every branch has written so many of its tokens."""
    manager = PagedKVManager(200, 16)
    scheduler = Scheduler(SchedulerConfig(512), manager)
    scheduler.add(Request("A", tuple(range(prompt)), max_tokens=200, n=n))
    copies = []
    advance(scheduler)
    for _ in range(tokens):
        copies += advance(scheduler).copies
    report = manager.report()
    return len(copies), report.num_used_blocks, report.num_used_blocks + report.shared_saved


def test_numbers_of_lesson_06():
    copies, used, unshared = forked(23, 4, 1)
    assert copies == 3
    says("06.5", used, unshared, 23, 23 + 4 * 7, 4 * (23 + 7))
    assert forked(32, 4, 1)[0] == 0
    says("06.4", percent(1 - used / unshared), unshared)
    late = forked(23, 4, 127)
    says("06.4", percent(1 - late[1] / late[2]), late[2])
    assert late[2] - late[1] == unshared - used == 3


def cached(first, second, block_size, common=None):
    """Tokens of the second prompt that the cache of the first saves."""
    scheduler = Scheduler(SchedulerConfig(1024), PagedKVManager(1100, block_size, prefix_caching=True))
    scheduler.add(Request("A", tuple(range(first)), max_tokens=1))
    advance(scheduler)
    common = min(first, second) if common is None else common
    request = Request("B", tuple(range(common)) + tuple(5000 + i for i in range(second - common)), max_tokens=1)
    scheduler.add(request)
    output = advance(scheduler)
    return request.num_cached_tokens, output.scheduled[0]


def test_numbers_of_lesson_04():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in (64, (50, 64), (50, 64)))

    def softmax(part):
        weights = np.exp(k[part] @ q / 8)
        return weights @ v[part] / weights.sum()

    averaged = np.mean([softmax(slice(i, i + 16)) for i in range(0, 50, 16)], axis=0)
    says("04.2", f"{np.abs(averaged - softmax(slice(None))).max():.2f}")
    assert "second of four" in told("04.3")
    assert int((k @ q).argmax()) // 16 == 1
    page = 16 * 128 * 2
    says("04.5", page // 1024, 16, 128, 2)
    assert page * 8 * 32 * 2 == bytes_per_block(32, 8, 16, 128, torch.bfloat16)


def test_numbers_of_lesson_07():
    found, item = cached(110, 110, 16, common=100)
    says("07.1", found, item.num_new, 110)
    says("07.2", found, 100)
    tokens, item = cached(96, 96, 16)
    assert (tokens, item.num_new, item.slots) == (95, 1, (-1,)), "queried once more, nothing is written"
    assert [cached(300, 300, size, common=240)[0] for size in (16, 128, 256)] == [240, 128, 0]
    says("07.3", 128, 0, 240)
    says("07.4", 95, 96)
    # The digits end 13 tokens before the form does, in its third block.
    assert [cached(49, 49, 16, common=49 - after)[0] for after in (0, 13)] == [48, 32]
    says("07.6", 48, 32)
    assert cached(140, 140, 16, common=0)[0] == 0


def run_of_three(num_blocks, mode, cpu_blocks=0):
    """LESSONS' three requests of 6 + 10 tokens: ``(step of C's preemption, of its return, tokens it computes then, moves, steps)``."""
    scheduler = Scheduler(SchedulerConfig(64, preemption_mode=mode), PagedKVManager(num_blocks, 4, num_cpu_blocks=cpu_blocks))
    for name in "ABC":
        scheduler.add(Request(name, tuple(ord(name) + i for i in range(6)), max_tokens=10))
    left, back, computed, moves = [], [], [], 0
    while scheduler.has_unfinished():
        output = advance(scheduler)
        moves += len(output.swap_in) + len(output.swap_out)
        if output.preempted:
            left.append(output.step)
        if output.admitted and output.step > 1:
            back.append(output.step)
            computed.append(next(item.num_new for item in output.scheduled if item.request_id == "C"))
    return left, back, computed, moves, scheduler.step


def thrashing(num_blocks=8, block_size=4, prompt=6, output=10):
    """The same run with the wrong `can_resume`, which asks only for the blocks that C had: ``(preemptions, block moves)``.

    A model of its own: our manager asks rightly, so our scheduler cannot run it. A and B never step back.
    """
    def blocks(tokens):
        return -(-tokens // block_size)

    older, c = prompt, prompt      # tokens in the cache at the end of step 1; each later step adds one
    running, preemptions, moves, done = True, 0, 0, 1
    while done < output or c < prompt + output - 1:
        step_older = done < output
        free = num_blocks - (2 * blocks(older + 1) if step_older else 0)
        if running and blocks(c + 1) > free:
            running, preemptions, moves = False, preemptions + 1, moves + blocks(c)
        elif not running and blocks(c) <= free:                     # the wrong question; its next token is not asked for
            running, moves = True, moves + blocks(c)
            if blocks(c + 1) <= free:
                c += 1
        elif running:
            c += 1
        if step_older:
            older, done = older + 1, done + 1
    return preemptions, moves


def test_numbers_of_lesson_08():
    assert run_of_three(8, "recompute") == ([4], [11], [9], 0, 17)
    assert run_of_three(8, "swap", 8) == ([4], [11], [1], 4, 17)
    assert run_of_three(12, "recompute")[4] == 10
    says("08.3", 4, 11, 10)
    assert "seven steps later" in told("08.3")
    says("08.5", 137.4, 36.3, f"{39.1 / 33.4:.2f}", 16, 32)
    says("08.5", f"{1000 * 131_072 * 256 * (1 / 12.3e9 + 1 / 13.1e9):.1f}", f"{1000 * 2 * 8.03e9 * 256 / 172e12:.1f}")
    says("08.6", f"{39.1 / 33.4:.2f}", f"{36.3 / 137.4:.2f}")
    says("08.2", 9, 8)
    assert thrashing() == (3, 12)
    idea = next(m.idea for e in ALL if e.name == "08.a" for m in e.misconceptions)
    assert "3 preemptions and 12 block moves instead of 1 and 4" in idea
    says("08.4", 3, 12, 1, 4)


def test_numbers_of_lesson_09():
    small = of("SmolLM2-135M", torch.float32)
    group = small.num_heads // small.num_kv_heads
    assert group == 3
    says("09.3", "three", small.num_heads, "0, 1 and 2")
    assert [per_token(small), group * per_token(small)] == [46_080, 138_240]
    config = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 2, "vocab_size": 64, "num_attention_heads": 9,
              "num_key_value_heads": 3}
    spec = Llama.spec_from(config, architecture="LlamaForCausalLM", eos_token_ids=(), bos_token_id=None, dtype=torch.float32)
    lines = layer_walk("SmolLM2", spec).lines
    says("09.6", lines[6].prefill, lines[6].decode, "Line 6", "line 4", "line 5")
    assert [line.step for line in lines if line.pool] == [4, 5]
    assert lines[6].code.startswith("weights")
    width = of("GPT-2", torch.float32).hidden_size
    says("09.9", f"{width} x {width}", f"{width} x {3 * width}")
    says("09.8", f"{load_spec(resolve('tiny-shakespeare')).vocab_size:,}", 40)


def test_numbers_of_lesson_10():
    says("10.4", round(1.5 * 338 * 0.037), f"{1.5 * 338 * 0.037:.1f}", f"{338 * 0.037:.1f}", int(15_728 / 434.5), 15_728 // 2048)
    scheduler = Scheduler(SchedulerConfig(64, max_num_seqs=4), PagedKVManager(200, 4))
    for i in range(8):
        scheduler.add(Request(str(i), (i,) * 6, max_tokens=16))
    first, last = {}, {}
    while scheduler.has_unfinished():
        for item in advance(scheduler).scheduled:
            first.setdefault(item.request_id, scheduler.step)
            last[item.request_id] = scheduler.step
    assert (first["0"], last["0"], first["7"]) == (1, 16, 17)
    says("10.3", 1, 16)
    says("10.7", first["7"], 15_728 // 2048)
    assert stop_case(["the E", "ND"], "END").want[0] == "the ", "what 10.6 says"


def test_numbers_of_lesson_11():
    """All of them the paper's own: its text, its labels, or read off its curves."""
    small, large = published()["fig12a"], published()["fig12b"]

    def ratio(curves, system, threshold):
        return crossing(curves["vLLM"], threshold) / crossing(curves[system], threshold)

    says("11.4", f"{ratio(small, 'FasterTransformer', 0.2):.1f}", f"{ratio(small, 'FasterTransformer', 0.5):.1f}", 1.6)
    says("11.4", *{f"{ratio(small, 'Orca (Max)', threshold):.2f}" for threshold in (0.2, 0.5)})
    assert len({round(ratio(small, "FasterTransformer", threshold), 1) for threshold in (0.2, 0.5, 0.9)}) == 3
    assert {round(curve[-1][1], 1) for curve in small.values()} == {1.6}
    thresholds = np.arange(0.05, 1.0, 0.01)
    over_static = [ratio(small, "FasterTransformer", threshold) for threshold in thresholds]
    says("11.5", f"{over_static[0]:.0f}", f"{over_static[-1]:.0f}", "0.05")
    assert over_static[0] == max(over_static) > 22 > min(over_static) == over_static[-1]
    both = [ratio(curves, "Orca (Max)", t) for curves in (small, large) for t in thresholds if crossing(curves["Orca (Max)"], t)]
    assert 6.6 < max(both) < 6.7
    says("11.10", 6.7)
    lowest = [small[system][0] for system in ("Orca (Max)", "Orca (Pow2)", "Orca (Oracle)")]
    assert all(rate <= 0.25 and round(latency, 3) == 0.030 for rate, latency in lowest)
    says("11.2", "0.030", "2,048")
    assert all(curve[-1][0] < 3 for curve in small.values()), "11.3: 3 requests a second are too many for all"
    slots = PAPER_SERVERS["opt-175b"].num_slots
    says("11.7", f"{slots / 1000:.1f}K", slots // 2048, round(19.31 + 58.45))
    assert slots / 2 / 78 > 300
    says("11.1", 338, 30.42, 13.62, "7.00")
    says("11.6", 38.2, 25.2, 36.6, 57.3)


def while_running(dataset):
    """How probable each number of tokens is for a request of a data set that is looked at while it runs: 0, 1, 2, ..."""
    prompts, answers = (np.bincount(side.lengths_at(np.arange(side.num_requests))) / side.num_requests
                        for side in (lengths.load(dataset).input, lengths.load(dataset).output))
    still = np.cumsum(answers[::-1])[::-1][1:]              # the share of answers that are longer than 0, 1, 2, ... tokens
    return np.convolve(prompts, still / still.sum())


def empty_and_filled(dataset, size):
    """``(empty slots of a request, share of the slots in use that hold tokens)`` in blocks of ``size``."""
    found = while_running(dataset)
    tokens = np.arange(len(found))
    empty, mean = float(found @ (-tokens % size)), float(found @ tokens)
    return empty, mean / (mean + empty)


def test_numbers_of_lesson_12():
    sharegpt, alpaca = ({size: empty_and_filled(name, size) for size in (16, 128, 256)} for name in lengths.DATASETS)
    mean = while_running("alpaca") @ np.arange(len(while_running("alpaca")))
    says("12.1", f"{mean:.0f}", "More than 180", f"{sharegpt[256][0]:.0f}", 255 / 2, f"{256 - mean:.0f}")
    assert 180 < alpaca[256][0] < 190
    assert cached(100, 100, 16, common=80)[0] == 80
    assert [cached(200, 200, size, common=80)[0] for size in (32, 64, 128)] == [64, 64, 0]
    says("12.2", 80 - 64, 64, 80, 128)
    swap, latency = dict(published()["fig19a"]["Swap in + out"]), {name: dict(points) for name, points in published()["fig18b"].items()}
    server = PAPER_SERVERS["opt-13b"]
    model, gpu = server.model, server.gpu
    says("12.3", f"{swap[1]:.1f}", f"{swap[16]:.1f}", percent(sharegpt[16][1], 0), percent(1 - sharegpt[16][1], 0), f"{model.kv_bytes_per_token:,}")
    for name, sizes in (("12.3", (1, 16)), ("12.4", (8, 16, 32, 256)), ("12.5", (16, 128))):
        says(name, *(f"{latency['ShareGPT'][size]:.3f}" for size in sizes))
    says("12.5", *(f"{latency['Alpaca'][size]:.3f}" for size in (16, 128)), percent(alpaca[128][1], 0), "nearly 90 %")
    assert 0.86 < sharegpt[128][1] < 0.9
    assert (16 - 1) / 2 - (8 - 1) / 2 == 4

    def step_ms(batch):     # fitted on Fig. 1 of the paper
        return 26.24 + 0.419 * batch

    says("12.6", percent(step_ms(16) / step_ms(8) - 1, 0), percent(2 * step_ms(8) / step_ms(16) - 1, 0))
    says("12.7", f"{500 * model.kv_bytes_per_token / 1e9:.2f}", f"{model.weight_bytes / 1e9:.1f}", 200)
    assert gpu.flops / gpu.bandwidth == pytest.approx(200, rel=0.01)
    reading = model.weight_bytes / gpu.bandwidth
    says("12.8", f"{gpu.bandwidth / 1e9:,.0f}", f"{1000 * reading:.1f}", 60, f"{gpu.flops / 1e12:.0f}", "12,000", 200,
         f"{2048 * model.kv_bytes_per_token / 2**30}")
    assert 1 / reading == pytest.approx(60, rel=0.02)
    assert gpu.flops / (2 * model.num_parameters) == pytest.approx(12_000, rel=0.02)
    assert server.num_slots * model.kv_bytes_per_token == pytest.approx(12 * 2**30, rel=0.001)


def test_a_block_for_the_whole_request_is_orca_max():
    """What 12.10 says: the same four parts, whatever the requests."""
    reports = []
    for manager in (PagedKVManager(6, 256), ContiguousKVManager(6 * 256, 1, "max", 256)):
        scheduler = Scheduler(SchedulerConfig(256), manager)
        for i, (prompt, answer) in enumerate(((8, 61), (208, 43), (25, 20), (1, 1))):
            scheduler.add(Request(str(i), tuple(range(prompt)), max_tokens=answer))
        for _ in range(9):
            advance(scheduler)
        reports.append(manager.report().shares())
    assert reports[0] == reports[1]


def test_numbers_of_lesson_13():
    first, short, known, longest = (race(policy) for policy in (
        None, By(lambda c: (c.prompt_tokens, c.arrival)), By(lambda c: (c.max_tokens, c.arrival)), By(lambda c: (-c.max_tokens, c.arrival)),
    ))
    says("13.1", f"{first.mean:.1f}", f"{short.mean:.1f}", short.recomputed, first.recomputed, short.steps, first.steps)
    assert (short.preemptions, first.preemptions) == (11, 15)
    says("13.2", first.preemptions)
    says("13.4", known.steps, first.steps, known.preemptions, first.preemptions, known.recomputed, first.recomputed)
    assert round(longest.mean, 1) == 162.0
    queue, passing = race(on="hidden"), race(By(lambda c: (c.prompt_tokens, c.arrival)), on="hidden")
    says("13.6", passing.largest_wait, queue.largest_wait, queue.p99, passing.p99, passing.steps, queue.steps)
    assert 0.45 < passing.mean / queue.mean < 0.5
    says("13.7", (4 - 1) / 2, (16 - 1) / 2, round((4 - 1) / 2 + (16 - 1) / 2))
