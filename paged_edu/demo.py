"""What `paged-edu demo` does: 24 prompts through the embedded model in a small pool, watched through the engine's own events.

Then the same requests, with the lengths that they turned out to have, run once more in the same memory under what came before
PagedAttention: a contiguous reservation for each (Paper §3.1, Fig. 2). No network, no GPU. `demo_view` draws; here are the requests and the numbers.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from .core.events import Event, RequestFinished, StepScheduled
from .core.scheduler import Scheduler
from .core.sequence import Status
from .trace import EventLog

if TYPE_CHECKING:
    from .engine.llm import LLM
    from .engine.outputs import RequestOutput

MODEL = "tiny-shakespeare"
BLOCK_SIZE = 16
NUM_BLOCKS = 48
"""768 slots: exactly three reservations of `MAX_MODEL_LEN`, so that the contiguous side loses nothing to a remainder."""
MAX_MODEL_LEN = 256
MAX_TOKENS = 160
TEMPERATURE = 0.8
WATERMARK = 0.05
"""Share of the blocks that admission leaves to those who run already: fewer have to step back right after a newcomer has started."""

_BELLY = """MENENIUS:
There was a time when all the body's members
Rebell'd against the belly, thus accused it:
That only like a gulf it did remain
I' the midst o' the body, idle and unactive,
Still cupboarding the viand, never bearing
Like labour with the rest, where the other instruments
Did see and hear,"""
_WINTER = """GLOUCESTER:
Now is the winter of our discontent
Made glorious summer by this sun of York;
And all the clouds that lour'd upon our house
In the deep bosom of the ocean buried.
Now are our brows bound with victorious wreaths;
Our bruised arms hung up for monuments;"""
_EAST = """ROMEO:
But, soft! what light through yonder window breaks?
It is the east, and Juliet is the sun.
Arise, fair sun, and kill the envious moon,
Who is already sick and pale with grief,
That thou her maid art far more fair than she:"""
_APOTHECARY = """ROMEO:
I do remember an apothecary,
And hereabouts he dwells, which late I noted
In tatter'd weeds, with overwhelming brows,
Culling of simples; meagre were his looks,"""
PROMPTS = (
    "ROMEO:", "First Citizen:\nWe are", _BELLY, "JULIET:\nO", "KING RICHARD III:\n", _EAST, "QUEEN MARGARET:\nWhat",
    "PETRUCHIO:\nCome, Kate,",
    "NORTHUMBERLAND:\nMy lord, the king", _WINTER, "Nurse:\nAy,", "LADY ANNE:\nFoul devil, for God's sake, hence, and trouble us not;",
    "CORIOLANUS:\nYou common cry of curs! whose breath I hate\nAs reek o' the rotten fens,", "Second Servant:", "WARWICK:\nThe king is",
    _APOTHECARY, "ISABELLA:\nO, it is excellent\nTo have a giant's strength;", "DUKE VINCENTIO:\n", "FRIAR LAURENCE:\nThe grey-eyed morn",
    "KATHARINA:\nI see", "LEONTES:\nToo hot, too hot!\nTo mingle friendship far is mingling bloods.", "Messenger:\nMy lord,",
    "PROSPERO:\nMy daughter", "All:\n",
)
"""Openings of very different lengths. Together they need more blocks than the pool has, so that somebody waits from the first step on."""


@dataclass(frozen=True, slots=True)
class Usage:
    """How one way of managing the memory served the requests. The three shares are of all slots of the pool and add up to 1."""

    steps: int
    """Steps until the last request ended."""
    peak_running: int
    """Most requests that ran in one step."""
    mean_finish: float
    """Step in which a request ended, averaged over the requests."""
    waiting_steps: int
    """Steps in which somebody had to wait: the shares are means over these, or over all steps if nobody ever waited."""
    token_share: float
    """Slots that hold the keys and values of a token."""
    empty_share: float
    """Slots that belong to a request and hold nothing."""
    free_share: float
    """Slots that belong to nobody."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One step: what the memory holds once the step's tokens are written and before anybody leaves [slots]."""

    running: int
    waiting: int
    tokens: int
    held: int
    total: int


def summarise(samples: Sequence[Sample], finished: Sequence[int]) -> Usage:
    """`Usage` of a run with one sample a step, whose requests ended in the steps ``finished`` (from 1)."""
    crowded = [s for s in samples if s.waiting]
    counted = crowded or samples
    return Usage(
        steps=len(samples), peak_running=max(s.running for s in samples), mean_finish=fmean(finished), waiting_steps=len(crowded),
        token_share=fmean(s.tokens / s.total for s in counted), empty_share=fmean((s.held - s.tokens) / s.total for s in counted),
        free_share=fmean((s.total - s.held) / s.total for s in counted),
    )


class Recorder:
    """A listener of the engine: the log of its events, and one `Sample` a step taken from them."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.log = EventLog.of(scheduler)
        self.samples: list[Sample] = []
        self.finished: dict[str, int] = {}
        """Request id -> the step in which it ended."""

    def __call__(self, event: Event) -> None:
        self.log(event)
        state = self.log.state
        if isinstance(event, StepScheduled):
            holders = [(seq_id, seq) for seq_id, seq in state.sequences.items() if seq.blocks]
            tokens = sum(seq.num_computed + event.tokens.get(seq_id, 0) for seq_id, seq in holders)
            held = sum(len(seq.blocks) for _, seq in holders) * state.block_size
            running = sum(request.status is Status.RUNNING for request in state.requests.values())
            total = state.num_blocks * state.block_size
            self.samples.append(Sample(running, len(state.requests) - running, tokens, held, total))
        elif isinstance(event, RequestFinished):
            self.finished[event.request_id] = len(self.samples)

    def usage(self) -> Usage:
        return summarise(self.samples, list(self.finished.values()))


def contiguous(
    lengths: Sequence[tuple[int, int]], num_blocks: int = NUM_BLOCKS, block_size: int = BLOCK_SIZE, max_model_len: int = MAX_MODEL_LEN,
) -> Usage:
    """Serve requests of these (prompt tokens, output tokens) with ``kv_manager="orca-max"``: the same scheduler, a runner without a model."""
    from .viz.fake_engine import FakeEngine

    engine = FakeEngine(num_blocks, block_size, max_model_len, kv_manager="orca-max")
    recorder = Recorder(engine.scheduler)
    engine.listen(recorder)
    engine.add(lengths)
    while engine.has_unfinished_requests():
        engine.step()
    return recorder.usage()


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Everything that the demo found out."""

    outputs: list[RequestOutput]
    """In order of arrival; the request id is the letter that the pictures show."""
    finished: dict[str, int]
    num_preemptions: int
    paged: Usage
    contiguous: Usage

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and texts, for `--json`."""
        requests = [{
            "request_id": o.request_id, "prompt": o.prompt, "text": o.outputs[0].text, "prompt_tokens": len(o.prompt_token_ids),
            "output_tokens": len(o.outputs[0].token_ids), "finish_reason": o.outputs[0].finish_reason,
            "finish_step": self.finished[o.request_id], "preemptions": o.metrics.num_preemptions,
        } for o in self.outputs]
        return {
            "model": MODEL, "temperature": TEMPERATURE, "max_tokens": MAX_TOKENS, "block_size": BLOCK_SIZE, "num_blocks": NUM_BLOCKS,
            "slots": NUM_BLOCKS * BLOCK_SIZE, "reservation": MAX_MODEL_LEN, "num_preemptions": self.num_preemptions,
            "paged": asdict(self.paged), "contiguous": asdict(self.contiguous), "requests": requests,
        }


def load() -> LLM:
    """The embedded model with the demo's small pool, on one thread unless the user has chosen another number."""
    from .engine.llm import LLM
    from .threads import one_thread_for_small_models

    llm = LLM(MODEL, block_size=BLOCK_SIZE, num_gpu_blocks_override=NUM_BLOCKS, max_model_len=MAX_MODEL_LEN, watermark=WATERMARK)
    one_thread_for_small_models(llm)
    return llm


def serve(llm: LLM, on_step: Callable[[Recorder], None] | None = None, prompts: Sequence[str] = PROMPTS) -> DemoResult:
    """Serve ``prompts`` together; ``on_step`` is called after every step, to draw."""
    from .sampling.params import SamplingParams
    from .viz.palette import letter

    engine = llm.engine
    recorder = Recorder(engine.scheduler)
    unlisten = engine.listen(recorder)
    outputs: dict[str, RequestOutput] = {}
    ids = [letter(i) for i in range(len(prompts))]
    try:
        for seed, (request_id, prompt) in enumerate(zip(ids, prompts, strict=True)):
            engine.add_request(request_id, prompt, SamplingParams(temperature=TEMPERATURE, max_tokens=MAX_TOKENS, seed=seed))
        while engine.has_unfinished_requests():
            outputs |= {output.request_id: output for output in engine.step(finished_only=True)}
            if on_step is not None:
                on_step(recorder)
    finally:
        unlisten()
        for request_id in ids:
            engine.abort_request(request_id)    # interrupted: nothing stays behind in the engine
    ordered = [outputs[request_id] for request_id in ids]
    lengths = [(len(o.prompt_token_ids), len(o.outputs[0].token_ids)) for o in ordered]
    return DemoResult(
        ordered, recorder.finished, recorder.log.state.num_preemptions, recorder.usage(),
        contiguous(lengths),
    )
