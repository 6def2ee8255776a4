"""Sharing at its edges, in real models: beams under memory pressure, a cache that outlives a stop string, host memory for swapping."""
import pytest
from parity import prompts_of, random_gpt2

from paged_edu import LLM, BeamSearchParams, SamplingParams
from paged_edu.engine import memory


def test_two_beam_searches_in_a_pool_for_one(tmp_path):
    """known fault B69"""
    random_gpt2(tmp_path, seed=2)
    prompts = prompts_of((6, 6), 97)
    params = BeamSearchParams(beam_width=4, max_tokens=6)
    common = {"dtype": "float64", "block_size": 4, "skip_tokenizer_init": True}
    with LLM(tmp_path, num_gpu_blocks_override=200, **common) as llm:
        alone = [llm.beam_search(prompt, params, use_tqdm=False)[0] for prompt in prompts]
    with LLM(tmp_path, num_gpu_blocks_override=12, **common) as llm:
        outputs = llm.beam_search(prompts, params, use_tqdm=False)
        pool = llm.engine.scheduler.manager.pool
        assert pool.num_free + pool.num_cached == 12
    assert sum(o.metrics.num_preemptions for o in outputs) > 0
    for output, expected in zip(outputs, alone):
        assert len(output.outputs) == 4
        assert [(c.token_ids, c.text) for c in output.outputs] == [(c.token_ids, c.text) for c in expected.outputs]


def test_what_a_stop_string_cut_from_the_text_is_cached_all_the_same():
    """known fault B23: the key of a block is its tokens, and it is cached up to the last one that was computed."""
    greedy = {"temperature": 0, "max_tokens": 12}
    told = []
    for caching in (False, True):
        with LLM("tiny-shakespeare", block_size=4, num_gpu_blocks_override=60, enable_prefix_caching=caching) as llm:
            (free,) = llm.generate("ROMEO:\nI ", SamplingParams(**greedy), use_tqdm=False)
            ids = free.outputs[0].token_ids
            stop = llm.tokenizer.decode(ids[2:4])
            (cut,) = llm.generate("ROMEO:\nI ", SamplingParams(stop=stop, **greedy), use_tqdm=False)
            assert cut.outputs[0].token_ids == ids[:4]
            assert cut.outputs[0].text == llm.tokenizer.decode(ids[:2])
            history = [*cut.prompt_token_ids, *cut.outputs[0].token_ids]
            llm.reset_prefix_cache()
            llm.generate("ROMEO:\nI ", SamplingParams(stop=stop, **greedy), use_tqdm=False)
            prompts = [[*history, 7, 8], history, history]
            outputs = [llm.generate(prompt, SamplingParams(**greedy), use_tqdm=False)[0] for prompt in prompts]
        told.append([o.outputs[0].token_ids for o in outputs])
        computed = len(history) - 1                 # the last sampled token was never computed
        assert [o.num_cached_tokens for o in outputs][:1] == ([computed // 4 * 4] if caching else [0])
    assert told[0] == told[1]
    assert told[1][1] == told[1][2]


def test_host_memory_for_swapping(monkeypatch):
    """known fault B139: little by default, what was asked for otherwise, and never more than there is."""
    monkeypatch.setattr(memory, "free_host_memory", lambda: 1024 * 2**20)
    with LLM("tiny-shakespeare", max_num_seqs=64) as llm:
        plan = llm.memory_plan
        assert 0 < plan.num_cpu_blocks <= plan.num_blocks
        assert plan.num_cpu_blocks * plan.bytes_per_block <= 0.1 * 1024 * 2**20
        assert f"{memory.mib(plan.num_cpu_blocks * plan.bytes_per_block)} to swap to" in str(plan)
    with LLM("tiny-shakespeare", num_gpu_blocks_override=8) as llm:
        assert llm.memory_plan.num_cpu_blocks == 8
    with LLM("tiny-shakespeare", num_gpu_blocks_override=8, swap_space=0) as llm:
        assert llm.memory_plan.num_cpu_blocks == 0
        assert llm.engine.runner.cpu_cache is None
    with LLM("tiny-shakespeare", num_gpu_blocks_override=8, swap_space=0.125) as llm:
        assert llm.memory_plan.num_cpu_blocks == 128 * 2**20 // llm.memory_plan.bytes_per_block
    with pytest.raises(ValueError, match=r"swap_space=4 GiB is 4,096.0 MiB; 1,02\d\.\d MiB of host memory are free beside the KV cache"):
        LLM("tiny-shakespeare", num_gpu_blocks_override=8, swap_space=4)
    with pytest.raises(ValueError, match="preemption_mode='swap' with swap_space=0"):
        LLM("tiny-shakespeare", preemption_mode="swap", swap_space=0)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_stop_strings_end_each_branch_for_itself(mode):
    """Branches that stop at different places, in a pool in which their group has to step back; whole and as a stream."""
    prompts = ["ROMEO:\nI ", "JULIET:\n"]
    common = {"n": 4, "temperature": 0.9, "seed": 3, "max_tokens": 24}
    with LLM("tiny-shakespeare", block_size=4, num_gpu_blocks_override=200) as llm:
        free = llm.generate(prompts, SamplingParams(**common), use_tqdm=False)
    with LLM("tiny-shakespeare", block_size=4, num_gpu_blocks_override=16, preemption_mode=mode) as llm:
        params = SamplingParams(stop=["\n", " the"], **common)
        stopped = llm.generate(prompts, params, use_tqdm=False)
        deltas = {}
        for output in llm.stream(prompts, params):
            for done in output.outputs:
                deltas[output.request_id[-1], done.index] = deltas.get((output.request_id[-1], done.index), "") + done.delta
        pool = llm.engine.scheduler.manager.pool
        assert pool.num_free + pool.num_cached == 16
    assert sum(o.metrics.num_preemptions for o in stopped) > 0
    lengths = set()
    for i, (whole, cut) in enumerate(zip(free, stopped)):
        for uncut, done in zip(whole.outputs, cut.outputs):
            text = uncut.text
            places = [(text.index(stop) + len(stop), stop) for stop in ("\n", " the") if stop in text]
            expected = text[: min(places)[0] - len(min(places)[1])] if places else text
            assert done.text == deltas[str(i), done.index] == expected
            assert (done.finish_reason, done.stop_reason) == (("stop", min(places)[1]) if places else (uncut.finish_reason, None))
            lengths.add(len(done.token_ids))
    assert len(lengths) > 2


@pytest.mark.parametrize("penalty", [1.0, -1.0])
def test_a_beam_search_may_end_before_its_first_token(monkeypatch, penalty):
    """Aborted while it waits, interrupted in its first step, or broken by its first logits: it has an output then, and the others go on."""
    params = BeamSearchParams(beam_width=2, length_penalty=penalty)
    with LLM(num_gpu_blocks_override=50) as llm:
        engine = llm.engine
        engine.add_request("b", "ROMEO:", params)
        output = engine.abort_request("b")
        assert [(c.finish_reason, c.token_ids, c.cumulative_logprob) for c in output.outputs] == [("abort", (), 0.0)]

        with monkeypatch.context() as patch:
            patch.setattr(engine.runner, "execute", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                llm.beam_search("ROMEO:", params, use_tqdm=False)
        assert not engine.has_unfinished_requests()

        logits = engine.runner.model.logits
        with monkeypatch.context() as patch:
            patch.setattr(engine.runner.model, "logits", lambda hidden: logits(hidden) * float("nan"))
            with pytest.warns(RuntimeWarning, match="not finite"):
                (output,) = llm.beam_search("ROMEO:", params, use_tqdm=False)
        assert output.outputs[0].finish_reason == "abort"
        (output,) = llm.beam_search("ROMEO:", params, use_tqdm=False)
        assert len(output.outputs) == 2
        assert len(output.outputs[0].token_ids) == 16


def test_an_interrupted_beam_search_still_knows_its_stop_token():
    """What recovery completes says the same as what ran through."""
    with LLM(num_gpu_blocks_override=50) as llm:
        params = BeamSearchParams(beam_width=4, max_tokens=12, stop_token_ids=list(range(190, 230)))
        expected = [(c.token_ids, c.stop_reason) for c in llm.beam_search("ROMEO:", params, use_tqdm=False)[0].outputs]
        assert any(reason is not None for _, reason in expected)
        scheduler = llm.engine.scheduler
        finish, cuts = scheduler._finish, []

        def interrupted(seq, reason, stop_reason):
            if reason == "stop" and not cuts:
                cuts.append(seq)
                raise KeyboardInterrupt
            finish(seq, reason, stop_reason)

        scheduler._finish = interrupted
        llm.engine.add_request("b", "ROMEO:", params)
        outputs = []
        while llm.engine.has_unfinished_requests():
            try:
                outputs += llm.engine.step()
            except KeyboardInterrupt:
                continue
        assert len(cuts) == 1
        assert [(c.token_ids, c.stop_reason) for c in outputs[-1].outputs] == expected


def test_another_thread_may_watch_and_reset_while_this_one_generates():
    import threading

    with LLM("tiny-shakespeare", block_size=4, num_gpu_blocks_override=60) as llm:
        errors, reports, done = [], [], threading.Event()

        def watch():
            try:
                while not done.is_set():
                    report = llm.memory_report()
                    reports.append(report)
                    assert report.token_states + report.reservation + report.internal + report.external == report.total
                llm.reset_prefix_cache()
            except Exception as error:
                errors.append(error)

        watcher = threading.Thread(target=watch)
        watcher.start()
        llm.generate(["ROMEO:", "JULIET:", "O"], SamplingParams(n=3, max_tokens=40), use_tqdm=False)
        done.set()
        watcher.join(60)
        assert not watcher.is_alive()
        assert errors == []
        assert any(report.token_states for report in reports)
        assert llm.engine.scheduler.manager.pool.num_cached == 0
