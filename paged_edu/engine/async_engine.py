"""AsyncEngine: an `LLM` for event loops. Any number of coroutines, in any number of loops, read their requests as they grow; one thread steps."""
from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from ..config import EngineConfig
from ..core.kv_manager import MemoryReport
from ..core.plan import SchedulerOutput
from ..sampling.beam import BeamSearchParams
from ..sampling.params import SamplingParams
from .engine import Engine
from .engine_thread import EngineThread
from .llm import LLM
from .memory import MemoryPlan
from .messages import Conversation, no_tools
from .output_stream import OutputStream
from .prepared import Params
from .prompts import Prompt

T = TypeVar("T")

QUICK = 1000
"""Characters or token ids of a prompt that are checked in the event loop (1 ms); a longer one is read in a thread of the loop's own."""


class AsyncEngine:
    """Serving in an event loop, that of a notebook too.

    >>> async with AsyncEngine("tiny-shakespeare") as engine:
    ...     async for output in engine.generate("ROMEO:", SamplingParams(max_tokens=40)):
    ...         print(output.outputs[0].delta, end="")

    ``options`` are those of `LLM`, with the same errors. Building one loads a model: ``await AsyncEngine.create(...)`` does that beside the loop.
    It may be used from any thread and loop, one loop after the other too. After a fork, the child's calls raise RuntimeError: its copy has no
    thread. A forgotten engine closes itself, at the end of the interpreter as well.
    """

    def __init__(self, model: str | os.PathLike[str] = "tiny-shakespeare", **options: Any) -> None:
        made: list[LLM] = []

        def build() -> tuple[Engine, Callable[[], None]]:
            made.append(LLM(model, **options))
            return made[0].engine, made[0].close

        self._thread = EngineThread(build)
        try:
            self._thread.start()
            self._llm = made[0]
            # Not joined here: the garbage collector must not wait for a step. At the end of the interpreter the thread sees to itself.
            weakref.finalize(self, self._thread.close, wait=False).atexit = False
        except BaseException:                               # Ctrl-C may come at any line
            self._thread.close(wait=False)
            raise

    @classmethod
    async def create(cls, model: str | os.PathLike[str] = "tiny-shakespeare", **options: Any) -> AsyncEngine:
        """An engine that was built in another thread, while the event loop went on."""
        return await asyncio.to_thread(cls, model, **options)

    @property
    def llm(self) -> LLM:
        """What it serves. Its engine belongs to the thread: whoever steps it here disturbs that."""
        return self._llm

    @property
    def config(self) -> EngineConfig:
        return self._llm.config

    @property
    def memory_plan(self) -> MemoryPlan:
        return self._llm.memory_plan

    @property
    def tokenizer(self) -> Any:
        self._thread.check_open()
        return self._llm.tokenizer

    @property
    def num_unfinished_requests(self) -> int:
        """Requests that were accepted and have neither ended nor been dropped."""
        return self._thread.num_requests

    @property
    def num_running_requests(self) -> int:
        """Of those, the ones that have blocks and are stepped; the others wait for their turn or for memory, or their prompt is being read."""
        return len(self._thread.engine.scheduler.running)

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output together, at most."""
        return self._thread.engine.scheduler.config.max_model_len

    @property
    def vocab_size(self) -> int:
        return self._thread.engine.vocab_size

    @property
    def closed(self) -> bool:
        return self._thread.closed

    # -- requests ------------------------------------------------------------------------------------------------------------------
    def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, request_id: str | None = None, priority: int = 0,
        interval: float = 0.0,
    ) -> OutputStream:
        """The outputs of one prompt as they grow, for ``async for``; each ``delta`` is what its text grew by since the one that was read before.

        A consumer slower than the engine gets fewer, longer deltas: nothing piles up. Checking and queueing happen when the loop begins, and
        raise there: ValueError, TypeError, and RuntimeError from an engine that is closed or draining. Leaving the loop drops the request.

        ``interval``: at least that many seconds between two outputs, but none before the first and the last; ``math.inf``: the last one only. With
        more than 8 requests the intervals grow with their number: an output costs the event loop, and so the engine, a tenth of a millisecond.
        No text is made in between, which costs a small model as much as its steps. What a request grew by just before it had to step back comes
        when it goes on.
        """
        return self._stream(lambda: prompt, sampling_params, request_id, priority, interval, quick=_length(prompt) <= QUICK)

    def beam_search(
        self, prompt: Prompt, params: BeamSearchParams, *, request_id: str | None = None, priority: int = 0, interval: float = 0.0,
    ) -> OutputStream:
        """The beams of one prompt as they grow, best first, and at the end the best outputs (`LLM.beam_search`); only those have deltas."""
        return self._stream(lambda: prompt, params, request_id, priority, interval, beams=True, quick=_length(prompt) <= QUICK)

    def chat(
        self, messages: Conversation, sampling_params: SamplingParams | None = None, *, request_id: str | None = None, priority: int = 0,
        chat_template: str | None = None, add_generation_prompt: bool = True, continue_final_message: bool = False, tools: Any = None,
        interval: float = 0.0,
    ) -> OutputStream:
        """The model's answer to one conversation as it grows: `generate` after `LLM.render_chat`, whose options are here too."""
        def render() -> Prompt:
            no_tools(tools)
            return self._llm.render_chat(
                messages, chat_template=chat_template, add_generation_prompt=add_generation_prompt, continue_final_message=continue_final_message,
            )

        return self._stream(render, sampling_params, request_id, priority, interval, quick=False)

    def render_chat(self, messages: Conversation, **options: Any) -> list[int]:
        """`LLM.render_chat`: the prompt token ids of a conversation. It computes: in an event loop, call it in a thread."""
        self._thread.check_open()
        return self._llm.render_chat(messages, **options)

    def _stream(
        self, prompt: Callable[[], Prompt], params: Params | None, request_id: str | None, priority: int, interval: float, *, quick: bool,
        beams: bool = False,
    ) -> OutputStream:
        def prepare(request_id: str) -> Any:            # refers to this engine, which therefore lives as long as its streams
            if beams and not isinstance(params, BeamSearchParams):
                raise TypeError(f"params must be BeamSearchParams, not {type(params).__name__}")
            if not beams and isinstance(params, BeamSearchParams):
                raise TypeError("BeamSearchParams are for beam_search()")
            return self._llm.engine.prepare(request_id, prompt(), params, priority=priority)

        return OutputStream(self._thread, request_id, prepare, quick, interval)

    async def abort(self, request_id: str) -> bool:
        """End a request: its consumer gets what there is, with finish_reason "abort". False if no request of that id is unfinished here."""
        return await asyncio.wrap_future(self._thread.abort(request_id))

    # -- the engine ----------------------------------------------------------------------------------------------------------------
    async def between_steps(self, work: Callable[[Engine], T]) -> T:
        """What ``work(engine)`` returns or raises, called in the engine's thread, between two steps: to add a listener, or to look at tables."""
        return await asyncio.wrap_future(self._thread.call(lambda: work(self._thread.engine)))

    def watch_steps(self, watcher: Callable[[Engine, SchedulerOutput], None]) -> Callable[[], None]:
        """Call ``watcher(engine, plan)`` in the engine's thread after each step, for metrics; returns the function that ends that.

        Cheaper than a listener: one call a step, not one an event. A watcher that raises is dropped, and logged.
        """
        return self._thread.watchers.add(watcher)

    async def memory_report(self) -> MemoryReport:
        """What the KV cache holds between two steps."""
        return await self.between_steps(Engine.memory_report)

    async def reset_prefix_cache(self) -> int:
        """Forget every cached prefix, as after a change of the weights; returns how many blocks could be found until now."""
        return await self.between_steps(Engine.reset_prefix_cache)

    async def drain(self) -> None:
        """Take no new requests, and return when those that were accepted have ended. Their last outputs can be read after that too."""
        await asyncio.wrap_future(self._thread.drain())

    def close(self) -> None:
        """Give weights and KV cache back. Requests that have not ended raise `RequestFailedError`; `drain` first to let them end.

        Waits for the step that runs, so in an event loop `aclose` is better. A second call does nothing, and neither does one in a forked process.
        """
        self._thread.close()

    def stop(self) -> None:
        """Begin to `close`, and do not wait."""
        self._thread.close(wait=False)

    async def aclose(self) -> None:
        """`close`, while the event loop goes on."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> AsyncEngine:
        self._thread.check_open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()


def _length(prompt: Any) -> int:
    """How long reading a prompt may take; what is no prompt is refused at once."""
    if isinstance(prompt, Mapping):
        return max((_length(value) for value in prompt.values() if not isinstance(value, Mapping)), default=0)
    return len(prompt) if isinstance(prompt, Sequence) else 0
