"""The course's one trace through the real scheduler: the numbers that the lessons quote."""
from paged_edu.core.paged import PagedKVManager
from paged_edu.core.scheduler import Scheduler, SchedulerConfig
from paged_edu.core.sequence import Request
from paged_edu.engine.fake_runner import FakeRunner, expected_tokens

TRACE24 = [(8, 61), (4, 2), (25, 20), (1, 35), (208, 43), (1, 41), (1, 33), (7, 34), (1, 50), (2, 71), (2, 35), (10, 5), (6, 25), (1, 20),
           (29, 141), (7, 47), (3, 26), (133, 48), (51, 10), (103, 38), (2, 38), (55, 38), (3, 2), (3, 21)]


def serve(num_blocks: int):
    manager = PagedKVManager(num_blocks, 16)
    scheduler = Scheduler(SchedulerConfig(max_model_len=256, max_num_batched_tokens=4096), manager)
    runner = FakeRunner(num_blocks, 16)
    requests = []
    for i, (prompt, output) in enumerate(TRACE24):
        requests.append(Request(str(i), tuple((31 * i + 7 * k) % 1000 for k in range(prompt)), max_tokens=output))
        scheduler.add(requests[-1])
    running, finish, recomputed, preemptions = [], {}, 0, 0
    waiting_states = []
    while scheduler.has_unfinished():
        computed = {r.request_id: sum(s.num_computed_tokens for s in r.live) for r in scheduler.running}
        output = scheduler.schedule()
        preemptions += len(output.preempted)
        recomputed += sum(computed[r] for r in output.preempted)
        running.append(len(scheduler.running))
        for seq in scheduler.update(output, runner.execute(output)):
            if seq.finished:
                finish[seq.request.request_id] = output.step
        if scheduler.waiting:
            waiting_states.append(manager.report().shares())
        manager.check()
    for request in requests:
        assert request.sequences[0].output_token_ids == expected_tokens(request.prompt_token_ids, request.max_tokens)
    assert manager.pool.num_used == 0
    mean = sum(finish.values()) / len(finish)
    return {"steps": scheduler.step, "first": running[0], "mean": round(mean, 1), "preemptions": preemptions, "recomputed": recomputed,
            "waiting": waiting_states}


def test_the_pool_of_the_tour():
    """60 blocks: LESSONS' numbers. 372 tokens run when the six come back; six of them, each one's last sampled, had never been computed."""
    result = serve(60)
    waiting = result.pop("waiting")
    assert result == {"steps": 141, "first": 24, "mean": 40.3, "preemptions": 6, "recomputed": 372 - 6}
    mean = {part: sum(step[part] for step in waiting) / len(waiting) for part in waiting[0]}
    assert mean["token_states"] > 0.8


def test_the_tight_pool_of_the_race():
    result = serve(24)
    result.pop("waiting")
    assert result == {"steps": 184, "first": 11, "mean": 87.2, "preemptions": 15, "recomputed": 592 - 15}
