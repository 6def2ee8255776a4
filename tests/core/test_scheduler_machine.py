"""One state machine over the whole scheduler (hypothesis): samples, beams, shared prefixes, swap, aborts and stops, in pools that hardly suffice.

The fake runner moves bytes: a wrong table, a missing copy, a block freed too early or a hit that was never computed changes a token, and
what every token should have been is known from the prompts alone.
"""
from collections import Counter

from driving import VOCAB, assert_empty, check, check_output, hypotheses, make, snapshot_equal
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paged_edu.core.block_table import num_blocks_for
from paged_edu.core.buddy import order_for
from paged_edu.core.contiguous import RESERVATIONS
from paged_edu.core.paged import PagedKVManager
from paged_edu.core.policy import FCFS, Priority
from paged_edu.core.sequence import Request
from paged_edu.engine.fake_runner import FakeBeam, expected_beams, expected_tokens
from paged_edu.trace import TraceState

MAX_LEN = 40
SEEN = Counter()        # what happened over all examples; see the last test


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(2, 20), block_size=st.sampled_from([1, 2, 3, 4, 4, 16]), cpu_blocks=st.sampled_from([0, 3, 40, 40]),
        mode=st.sampled_from(["auto", "recompute", "swap"]), caching=st.booleans(), seqs=st.integers(2, 12), extra_budget=st.integers(0, 40),
        threshold=st.sampled_from([0, 0, 1, 5]), chunked=st.booleans(), watermark=st.sampled_from([0.0, 0.0, 0.3]), priority=st.booleans(),
    )
    def build(self, num_blocks, block_size, cpu_blocks, mode, caching, seqs, extra_budget, threshold, chunked, watermark, priority):
        self.scheduler, self.runner = make(
            num_blocks, block_size, max_model_len=MAX_LEN, budget=(seqs + extra_budget) if chunked else MAX_LEN + extra_budget, seqs=seqs,
            policy=Priority() if priority else FCFS(), watermark=watermark, prefix_caching=caching, cpu_blocks=cpu_blocks, preemption_mode=mode,
            long_prefill_token_threshold=threshold if chunked else 0, enable_chunked_prefill=chunked,
        )
        self.start(caching)

    def start(self, caching):
        manager = self.scheduler.manager
        self.state = TraceState(manager.num_blocks, manager.block_size)
        self.scheduler.emit = self.scheduler.manager.emit = self.state.apply
        self.made: list[Request] = []
        self.stopped: set[int] = set()
        self.caching = caching

    # -- rules -----------------------------------------------------------------------------------------------------------------------
    @rule(
        base=st.integers(0, 2), length=st.integers(1, 20), n=st.sampled_from([1, 1, 2, 2, 3, 4, 8]), beam=st.booleans(), out=st.integers(1, 18),
        salt=st.sampled_from([None, None, None, "s"]), priority=st.integers(0, 2),
    )
    def add(self, base, length, n, beam, out, salt, priority):
        """Prompts are beginnings of three texts, so that many share a prefix. Two at a time, so that memory gets short."""
        self.add_one(base, length, n, beam, out, salt, priority)
        self.add_one(base, length + 2, max(1, n - 1), not beam, out + 3, None, priority)

    def add_one(self, base, length, n, beam, out, salt, priority):
        self.add_prompt(tuple((base * 77 + 13 * k) % VOCAB for k in range(length)), n, beam, out, salt, priority)

    def add_prompt(self, prompt, n, beam, out, salt, priority):
        name = f"r{len(self.made)}"
        made = Request(name, prompt, max_tokens=out, n=n, beam=beam and n > 1, cache_salt=salt, priority=priority)
        try:
            self.scheduler.add(made)
        except ValueError:
            assert not made.sequences, "a refused request leaves nothing"
            return
        self.made.append(made)
        if made.beam:
            self.runner.beams[name] = FakeBeam(n, len(prompt), made.max_tokens)

    @precondition(lambda self: any(r.finished and not r.beam for r in self.made))
    @rule(data=st.data(), more=st.integers(1, 5), out=st.integers(1, 6))
    def next_turn(self, data, more, out):
        """A chat goes on: all that was said, and a little more."""
        before = data.draw(st.sampled_from([r for r in self.made if r.finished and not r.beam]))
        text = before.sequences[0].token_ids
        self.add_prompt((*text, *range(more))[: MAX_LEN - 1], 1, False, out, before.cache_salt, before.priority)

    @precondition(lambda self: self.caching and any(r.finished and not r.beam for r in self.made))
    @rule(data=st.data(), out=st.integers(1, 6))
    def the_same_whole_blocks(self, data, out):
        """A prompt of which the cache may know every token: then the last one is queried again."""
        before = data.draw(st.sampled_from([r for r in self.made if r.finished and not r.beam]))
        size = self.scheduler.manager.block_size
        text = before.sequences[0].token_ids[: (MAX_LEN - 1) // size * size]
        if len(text) >= size:
            self.add_prompt(tuple(text[: len(text) // size * size]), 1, False, out, before.cache_salt, before.priority)

    @rule(times=st.sampled_from([1, 2, 4, 8, 16]))
    def run(self, times):
        for _ in range(times):
            self.step()

    @precondition(lambda self: self.scheduler.requests)
    @rule(data=st.data())
    def abort(self, data):
        assert self.scheduler.abort(data.draw(st.sampled_from(sorted(self.scheduler.requests))))

    @precondition(lambda self: self._stoppable())
    @rule(data=st.data())
    def stop_string(self, data):
        """A stop string is found in the text of one branch, whatever its request is doing by then."""
        seq_id = data.draw(st.sampled_from(self._stoppable()))
        self.stopped.add(seq_id)
        self.scheduler.finish(seq_id, "stop", "###")

    @precondition(lambda self: self.caching)
    @rule()
    def forget_the_prefixes(self):
        self.scheduler.manager.reset_prefix_cache()
        assert len(self.scheduler.manager.index) == 0

    @rule()
    def interrupt_a_step(self):
        """Something raised between plan and update: everything starts again from the tokens."""
        if self.scheduler.has_unfinished():
            self.scheduler.schedule()
        self.scheduler.recover()

    # -- what must hold ----------------------------------------------------------------------------------------------------------------
    @invariant()
    def books_balance(self):
        check(self.scheduler)
        snapshot_equal(self.state, self.scheduler)

    def step(self):
        scheduler, manager = self.scheduler, self.scheduler.manager
        hits = scheduler.prefix_stats.hits
        output = scheduler.schedule()
        check_output(scheduler, output)
        manager.check()
        for item in output.scheduled:
            assert -1 not in item.slots or (len(item.slots) == 1 and item.logits_from == 0), "only the last token of a cached text"
        scheduler.update(output, self.runner.execute(output))
        check(scheduler)
        snapshot_equal(self.state, scheduler)
        kind = self.kind
        SEEN.update({f"{kind} copies": len(output.copies), f"{kind} preempted": len(output.preempted), f"{kind} admitted": len(output.admitted)})
        SEEN.update(swap_out=bool(output.swap_out), swap_in=bool(output.swap_in), copies=bool(output.copies), preempted=len(output.preempted),
                    hits=scheduler.prefix_stats.hits > hits, full_hits=any(-1 in item.slots for item in output.scheduled),
                    pending=any(r.pending for r in scheduler.running), kv_pool=len(output.refused))

    def teardown(self):
        if not hasattr(self, "made"):
            return
        for _ in range(6000):
            if not self.scheduler.has_unfinished():
                break
            self.step()
        assert not self.scheduler.has_unfinished(), "somebody starves"
        for made in self.made:
            assert made.finished
            self._check_tokens(made)
        assert_empty(self.scheduler.manager)
        assert not self.scheduler.sequences
        assert self.scheduler.num_running_seqs == 0
        assert self.state.num_finished == len(self.made)

    @property
    def kind(self):
        manager = self.scheduler.manager
        return "paged" if isinstance(manager, PagedKVManager) else manager.reservation

    def _stoppable(self):
        return sorted(s.seq_id for r in self.scheduler.requests.values() if not r.beam for s in r.live if s.num_output_tokens)

    def _check_tokens(self, made):
        cut = any(s.finish_reason == "abort" or s.stop_reason == "kv_pool" for s in made.sequences)
        if made.beam:
            SEEN[f"{self.kind} beams"] += not cut and len(made.sequences) > 1
            full = expected_beams(made.prompt_token_ids, self.runner.beams[made.request_id], VOCAB)
            ended = hypotheses(made)
            if cut:
                assert all(h in full for h in ended if h[1] == "stop"), "what had ended before the cut had ended rightly"
            else:
                assert sorted(ended) == sorted(full), "a beam went on from the wrong parent, or read what was not its own"
            return
        branches = Counter(s.branch for s in made.sequences)
        assert set(branches.values()) == {1}
        if not cut:
            assert len(branches) == made.n
            SEEN[f"{self.kind} samples"] += made.n > 1
        for seq in made.sequences:
            assert seq.output_token_ids == expected_tokens(made.prompt_token_ids, seq.num_output_tokens, VOCAB, seq.branch)
            if seq.finish_reason == "length" and seq.stop_reason is None:
                assert seq.num_output_tokens == made.max_tokens
            assert (seq.stop_reason == "###") == (seq.seq_id in self.stopped)


OPTIONS = {
    "block_size": st.sampled_from([1, 2, 3, 4, 4, 16]), "max_len": st.sampled_from([12, MAX_LEN]), "seqs": st.integers(2, 12),
    "extra_budget": st.integers(0, 40), "threshold": st.sampled_from([0, 0, 1, 5]), "chunked": st.booleans(), "priority": st.booleans(),
    "mode": st.sampled_from(["auto", "recompute", "swap"]),
}


class GrowMachine(SchedulerMachine):
    """The same life under the managers that came before paging."""

    reservation = "grow"

    @initialize(num_blocks=st.integers(2, 40), **OPTIONS)
    def build(self, num_blocks, block_size, max_len, seqs, extra_budget, threshold, chunked, priority, mode):
        self.start_with(num_blocks, block_size, max_len, seqs, extra_budget, threshold, chunked, priority, mode)

    def start_with(self, num_blocks, block_size, max_len, seqs, extra_budget, threshold, chunked, priority, mode):
        self.scheduler, self.runner = make(
            num_blocks, block_size, max_model_len=max_len, budget=(seqs + extra_budget) if chunked else MAX_LEN + extra_budget, seqs=seqs,
            policy=Priority() if priority else FCFS(), long_prefill_token_threshold=threshold if chunked else 0, enable_chunked_prefill=chunked,
            reservation=self.reservation, preemption_mode=mode,
        )
        self.start(False)


class MaxMachine(GrowMachine):
    """Room for so many runs: in the other pools several branches of the full length would hardly ever be let in."""

    reservation = "max"

    @initialize(num_runs=st.integers(1, 9), **OPTIONS)
    def build(self, num_runs, block_size, max_len, **options):
        self.start_with(num_runs << order_for(num_blocks_for(max_len, block_size)), block_size, max_len, **options)


class Pow2Machine(GrowMachine):
    reservation = "pow2"


class OracleMachine(GrowMachine):
    reservation = "oracle"


class TightMachine(SchedulerMachine):
    """Short of blocks, with a cache of small ones and host memory: what the general one comes to seldom, or in some runs not at all."""

    @initialize(
        num_blocks=st.integers(6, 20), block_size=st.sampled_from([1, 2]), mode=st.sampled_from(["auto", "swap", "swap"]), seqs=st.integers(6, 12),
        priority=st.booleans(),
    )
    def build(self, num_blocks, block_size, mode, seqs, priority):
        self.scheduler, self.runner = make(
            num_blocks, block_size, max_model_len=MAX_LEN, budget=MAX_LEN + 20, seqs=seqs, policy=Priority() if priority else FCFS(), watermark=0.0,
            prefix_caching=True, cpu_blocks=40, preemption_mode=mode, enable_chunked_prefill=False,
        )
        self.start(True)


for machine, examples in ((SchedulerMachine, 100), (TightMachine, 60), (GrowMachine, 60), (MaxMachine, 25), (Pow2Machine, 25), (OracleMachine, 25)):
    machine.TestCase.settings = settings(
        max_examples=examples, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck),
    )
TestScheduler, TestTight = SchedulerMachine.TestCase, TightMachine.TestCase
TestGrow, TestMax, TestPow2, TestOracle = GrowMachine.TestCase, MaxMachine.TestCase, Pow2Machine.TestCase, OracleMachine.TestCase


def test_every_mechanism_took_part():
    """Runs after the machine, in file order: an example in which nothing was swapped, shared or copied proves nothing."""
    every = {
        "swap_out", "swap_in", "copies", "preempted", "hits", "full_hits", "pending", "kv_pool", "grow preempted",
        *(f"{kind} {what}" for kind in ("paged", *RESERVATIONS) for what in ("copies", "samples", "beams")),
    }
    assert not {what for what in every if not SEEN[what]}, SEEN
