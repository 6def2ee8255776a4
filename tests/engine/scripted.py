"""An engine whose every request says what its script says: real scheduler, real pool, bytes checked, real tokenizer, no model."""
from __future__ import annotations

from dataclasses import replace

from paged_edu import Engine
from paged_edu.core.kv_manager import PagedKVManager
from paged_edu.core.plan import Branch
from paged_edu.core.scheduler import Scheduler, SchedulerConfig
from paged_edu.engine.fake_runner import FakeRunner

PROMPT = [5, 6, 7]


class ScriptedRunner(FakeRunner):
    """Answers with the tokens of ``scripts[request id]``, ``width`` of them a step; after their end with the last one again."""

    def __init__(self, *args, width=1):
        super().__init__(*args)
        self.scripts, self.width = {}, width

    def execute(self, output, sampling=None):
        result = super().execute(output, sampling)
        branches = {}
        for item in output.scheduled:
            if item.num_samples:
                script, at = self.scripts[item.request_id], item.seq_len - len(PROMPT)
                tokens = tuple(script[min(i, len(script) - 1)] for i in range(at, at + self.width))
                branches[item.request_id] = (Branch(item.seq_id, tokens),)
        return replace(result, branches=branches)


def scripted(tokenizer, num_blocks=64, block_size=4, max_model_len=256, eos=(), width=1):
    scheduler = Scheduler(SchedulerConfig(max_model_len, 16, 64), PagedKVManager(num_blocks, block_size))
    vocab = len(tokenizer)
    return Engine(scheduler, ScriptedRunner(num_blocks, block_size, vocab, width=width), tokenizer, vocab_size=vocab, eos_token_ids=eos)


def add(engine, request_id, script, params):
    """Queue a request that will say ``script``: text, or token ids."""
    engine.runner.scripts[request_id] = engine.tokenizer(script)["input_ids"] if isinstance(script, str) else list(script)
    engine.add_request(request_id, PROMPT, params)


def follow(engine):
    """Step to the end: request id -> the outputs it gave, and check that deltas and texts agree."""
    seen: dict[str, list] = {}
    for _ in range(5000):
        if not engine.has_unfinished_requests():
            return seen
        for output in engine.step():
            before = seen.setdefault(output.request_id, [])
            done = output.outputs[0]
            assert done.text == (before[-1].text if before else "") + done.delta
            before.append(done)
    raise AssertionError("it does not end")
