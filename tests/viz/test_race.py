"""The race: the lesson's numbers, what a result counts, who is disqualified, and the leaderboard as text and HTML."""
from __future__ import annotations

from html.parser import HTMLParser

import pytest
from raced import By

from paged_edu.engine.fake_runner import FakeRunner
from paged_edu.engine.own_manager import OwnManager
from paged_edu.viz import race as module
from paged_edu.viz.exercises import policies
from paged_edu.viz.fake_engine import FakeEngine
from paged_edu.viz.race import Boards, DisqualifiedError, Leaderboard, Result, Run, race, workload

SHORTEST_PROMPT = By(lambda c: (c.prompt_tokens, c.arrival))


@pytest.mark.parametrize(("policy", "steps", "mean", "preemptions", "recomputed"), [
    (None, 184, 87.2, 15, 592), (SHORTEST_PROMPT, 191, 54.5, 11, 775), (By(lambda c: (c.max_tokens, c.arrival)), 238, 61.6, 6, 289),
    (By(lambda c: (-c.max_tokens, c.arrival)), 200, 162.0, 17, 1164),
], ids=["first come", "shortest prompt", "shortest answer", "longest answer"])
def test_numbers_of_the_lesson(policy, steps, mean, preemptions, recomputed):
    """The design notes have them from an independent model."""
    result = race(policy)
    assert (result.steps, round(result.mean, 1), result.preemptions, result.recomputed) == (steps, mean, preemptions, recomputed)
    assert result.p99 == max(result.took) == steps, "of 24, the last"


def test_a_fixed_key_races_as_well():
    class Key:
        def key(self, request):
            return len(request.prompt_token_ids), request.arrival_index

    assert race(Key()).took == race(SHORTEST_PROMPT).took


def test_what_is_counted():
    """Two requests in a pool for one: the second waits until the first has ended."""
    run = Run(FakeEngine(1, 16), ())
    run.add(10, 4)
    run.add(10, 3)
    result = run.result("two")
    assert (result.took, result.waits, result.steps) == ((4, 7), (0, 4), 7)
    assert (result.largest_wait, result.p99, result.mean) == (4, 7, 5.5)


def test_p99_of_many():
    result = Result("r", 1, tuple(range(1, 201)), (0,) * 200, 0, 0)
    assert result.p99 == 198


def test_the_hidden_workload_keeps_coming():
    entries = workload("hidden")
    assert len(entries) == 120
    assert [entry.step for entry in entries] == sorted(entry.step for entry in entries)
    assert all(entry.prompt + entry.output <= 256 for entry in entries)
    queue, passing = race(on="hidden"), race(SHORTEST_PROMPT, on="hidden")
    late = passing.waits.index(passing.largest_wait)
    ended = [entry.step + took - 1 for entry, took in zip(entries, passing.took)]
    passed = [i for i in range(late + 1, 120) if ended[i] < ended[late] and entries[i].prompt < entries[late].prompt]
    assert (entries[late].step, entries[late].prompt, 120 - late - 1, len(passed), entries[-1].step) == (73, 139, 99, 96, 358), "as the lesson says"
    assert passing.mean < 0.5 * queue.mean
    assert passing.p99 > 1.9 * queue.p99


def test_who_loses_a_token_is_disqualified(monkeypatch):
    honest = FakeRunner.execute

    def forgetful(self, output, sampling=None):
        if output.step == 3:
            self.cells[:5] = 7
        return honest(self, output, sampling)

    monkeypatch.setattr(FakeRunner, "execute", forgetful)
    with pytest.raises(DisqualifiedError, match="that are its own"):
        race()


def test_who_never_ends_is_disqualified(monkeypatch):
    monkeypatch.setattr(module, "MOST_STEPS", 50)
    with pytest.raises(DisqualifiedError, match="after 50 steps 17 requests have not ended"):
        race()


def test_who_keeps_blocks_is_disqualified():
    class Keeps(OwnManager):
        def start(self):
            self.list = list(range(self.num_blocks))

        def num_free(self):
            return len(self.list)

        def take(self, count):
            return None if count > len(self.list) else [self.list.pop() for _ in range(count)]

        def give(self, blocks):
            self.list += blocks

        def report(self):
            from dataclasses import replace

            return replace(super().report(), external=0)

    with pytest.raises(DisqualifiedError, match="everybody has ended, and 384 slots are still taken"):
        race(kv_manager=Keeps)


def test_unknown_workload():
    with pytest.raises(ValueError, match="on must be one of 'trace24', 'hidden', not 'mine'"):
        race(on="mine")


class Strict(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_leaderboard():
    board = Leaderboard([race(name="<b>"), race(SHORTEST_PROMPT)], "T & T")
    assert [result.name for result in board.results] == ["By", "<b>"], "the best mean first"
    lines = str(board).splitlines()
    assert lines[0].split() == ["T", "&", "T", "mean", "p99", "steps", "recomputed", "largest", "wait"]
    assert lines[1].split() == ["By", "54.5*", "191", "191", "775", "148"]
    assert lines[2].split() == ["<b>", "87.2", "184*", "184*", "592*", "141*"]
    html = board.html()
    assert "&lt;b&gt;" in html
    assert "T &amp; T" in html
    page = Strict()
    page.feed(Boards([board, board])._repr_mimebundle_()["text/html"])
    assert not page.open
    assert page.seen.count("table") == 2
    assert str(Boards([board, Leaderboard([])])).startswith(str(board))


def test_the_machine_sees_what_is_broken(monkeypatch):
    """A scheduler that miscounts, overtakes or loses somebody is found, whatever the policy."""
    from paged_edu.engine.choosing import ChoosingScheduler

    fair = By(lambda c: c.arrival)
    assert policies.drive_policy(lambda: fair, ("seed 1",), None).kind == "ended"
    honest = ChoosingScheduler._make_room

    def room(self, request, tokens, step):
        made = honest(self, request, tokens, step)
        self.num_running_seqs += 1
        return made

    monkeypatch.setattr(ChoosingScheduler, "_make_room", room)
    found = policies.drive_policy(lambda: fair, ("seed 1",), None)
    assert (found.kind, found.words) == ("broken", "the places are miscounted")
    monkeypatch.undo()
    monkeypatch.setattr(ChoosingScheduler, "_step_back", lambda self, step: self._preempt(self.running[0], step) or self.running[0])
    with pytest.raises(ValueError, match="are not what its block table reads"):     # its place in the plan was not taken back
        policies.drive_policy(lambda: fair, ("seed 1",), None)


def test_the_broken_policy_of_the_lesson_is_named():
    """LESSONS: the oldest steps back and newcomers pass: the first request never ends, and the check says so."""
    class OldestGivesWay(By):
        def victim(self, running):
            return running[0]

    found = policies.drive_policy(lambda: OldestGivesWay(lambda c: -c.arrival), ("the first one, and others keep coming",), None)
    assert found.kind == "starves"
    assert found.words.startswith("request 0 starves: it has not ended after 250 steps, and 122 of those who came later have")
