"""Service: between HTTP and the engine. Whether a request is taken, what it asks, how long it may take, and what becomes of it."""
from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from ..engine.async_engine import QUICK, AsyncEngine
from ..engine.output_stream import OutputStream, RequestFailedError
from ..engine.outputs import RequestOutput
from ..engine.prompts import tokenize
from ..sampling.beam import BeamSearchParams
from ..sampling.params import SamplingParams
from .errors import ApiError, mistake, refusal, retry, stopped, stopping
from .metrics import EngineStats, RequestStats
from .params import Job, Prompt, check_body, parameters, plain_messages, prompts_of, shown_logprobs, wanted_tokens
from .replies import Reply, event
from .schemas import ChatRequest, CompletionRequest
from .settings import Settings
from .sse import LAST_WORD, Write

PROBES = (0.5, 30.0)
"""Seconds until the engine is tried again after it has failed, at first and at most; doubled each time."""
FIELDS = {*CompletionRequest.model_fields, *ChatRequest.model_fields}
logger = logging.getLogger(__name__)


class Service:
    """Serves one engine. Used in one event loop."""

    def __init__(self, engine: AsyncEngine, settings: Settings) -> None:
        self.engine, self.settings = engine, settings
        self.names = settings.model_names(engine.config.model)
        self.started = int(time.time())
        self.template = settings.read_chat_template()
        self.max_model_len = engine.max_model_len
        self.engine_stats, self.stats = EngineStats(), RequestStats()
        self._unwatch = engine.watch_steps(self.engine_stats)
        self.in_flight = 0
        """Prompts that were accepted, and neither answered nor dropped."""
        self._ended = 0
        """Of those, the ones that the engine has finished: others of their request have not ended, or a client reads slowly."""
        self.draining = self.cut = False
        self.failure: str | None = None
        """Why the engine is not asked any more, until it has answered a probe."""
        self._probe: asyncio.Task[None] | None = None

    # -- whether a request is taken --------------------------------------------------------------------------------------------------
    @property
    def healthy(self) -> bool:
        return not (self.draining or self.failure or self.engine.closed)

    def health(self) -> dict[str, Any]:
        status = "ok" if self.healthy else "failed" if self.failure else "draining"
        return {"status": status, "in_flight": self.in_flight}

    def drain(self) -> None:
        """Take no new request."""
        self.draining = True

    def cut_off(self) -> None:
        """End what has not ended: after the step that runs each of these requests is answered with 503. Does not wait; signal handlers call it."""
        self.draining = self.cut = True
        self.engine.stop()

    def check_open(self) -> None:
        if self.draining or self.engine.closed:
            raise stopping()
        if self.failure:
            raise retry(503, "the engine has failed and does not answer yet; the server's log says why", 5, "engine_failed")

    def check_model(self, name: str) -> None:
        if name not in self.names:
            served = ", ".join(map(repr, self.names))
            raise ApiError(404, f"there is no model {name[:80]!a}; this server has {served}", param="model", code="model_not_found")

    def take(self, count: int) -> Places:
        """Places for ``count`` prompts, or 429: a queue that only grows answers nobody in time."""
        if count > self.settings.max_prompts:
            raise ApiError(400, f"prompt has {count} prompts; this server takes at most {self.settings.max_prompts} in one request", param="prompt")
        waiting = max(0, self.in_flight - self._ended - self.engine.num_running_requests)
        if waiting + count > self.settings.max_queue:
            mean = self.stats.whole.sum / self.stats.finished if self.stats.finished else 1.0
            seconds = max(1, min(60, math.ceil(mean)))
            raise retry(429, f"{waiting} requests wait already, and at most {self.settings.max_queue} may: come again later", seconds, "queue_full")
        return Places(self, count)

    # -- what it asks ----------------------------------------------------------------------------------------------------------------
    async def completion(self, body: CompletionRequest) -> Job:
        """Raises ApiError, ValueError or TypeError for what is wrong with it."""
        check_body(body)
        prompts = await self._tokenized(prompts_of(body))
        echo, only_echo = bool(body.echo), body.max_tokens == 0 and bool(body.echo)
        return self._job(body, prompts, echo=echo, only_echo=only_echo)

    async def chat(self, body: ChatRequest) -> Job:
        check_body(body)
        messages = plain_messages(body.messages)
        tokenizer = self.engine.tokenizer
        if self.template is None and not getattr(tokenizer, "chat_template", None):
            raise ApiError(400, "this model has no chat template: ask /v1/completions, or give the server one with --chat-template FILE")
        options = {"add_generation_prompt": body.add_generation_prompt, "continue_final_message": body.continue_final_message}
        if body.continue_final_message and body.add_generation_prompt is None:
            options["add_generation_prompt"] = False
        given = {name: value for name, value in options.items() if value is not None}
        ids = await asyncio.to_thread(self.engine.render_chat, messages, chat_template=self.template, **given)
        job = self._job(body, [Prompt(None, tuple(ids))])
        job.messages = messages
        return job

    async def _tokenized(self, prompts: Sequence[str | list[int]]) -> list[Prompt]:
        tokenizer, vocab_size = self.engine.tokenizer, self.engine.vocab_size

        def all_of_them() -> list[Prompt]:
            return [Prompt(*tokenize(prompt, tokenizer, vocab_size)) for prompt in prompts]

        return all_of_them() if sum(map(len, prompts)) <= QUICK else await asyncio.to_thread(all_of_them)

    def _job(self, body: CompletionRequest | ChatRequest, prompts: list[Prompt], *, echo: bool = False, only_echo: bool = False) -> Job:
        params: list[SamplingParams | BeamSearchParams] = []
        for prompt in prompts:
            room = self._room(prompt, only_echo and shown_logprobs(body) is None)
            params.append(parameters(body, 1 if only_echo else wanted_tokens(body, room)))
            self._check_choices(params[-1])                     # the engine, which knows this too, is not asked about what is only echoed
        return Job(
            uuid4().hex, body.model, prompts, params, isinstance(body, ChatRequest), bool(body.stream),
            include_usage=body.stream_options is not None and bool(body.stream_options.include_usage), echo=echo, only_echo=only_echo,
            logprobs=shown_logprobs(body), priority=body.priority or 0, cache_salt=body.cache_salt, user=body.user,
        )

    def _room(self, prompt: Prompt, no_output: bool) -> int:
        """Tokens that an output may have."""
        length, limit = len(prompt.ids), self.max_model_len
        most = limit if no_output else limit - 1
        if self.settings.max_prompt_tokens is not None and self.settings.max_prompt_tokens < most:
            if length > self.settings.max_prompt_tokens:
                said = f"the prompt has {length} tokens; this server takes at most {self.settings.max_prompt_tokens}"
                raise ApiError(400, said, code="context_length_exceeded")
        elif length > most:
            said = f"the prompt has {length} tokens; max_model_len is {limit}" + ("" if no_output else ", and at least 1 is for the output")
            raise ApiError(400, said, code="context_length_exceeded")
        return limit - length

    def _check_choices(self, params: SamplingParams | BeamSearchParams) -> None:
        name, count = ("beam_width", params.beam_width) if isinstance(params, BeamSearchParams) else ("n", params.n)
        most = self.engine.config.max_num_seqs
        if count > most:
            raise ApiError(400, f"{name}={count} would be {count} sequences at once; max_num_seqs is {most}", param=name)

    # -- what becomes of it ----------------------------------------------------------------------------------------------------------
    async def start(self, job: Job) -> list[OutputStream]:
        """Queue the prompts; all of them, or none."""
        if job.only_echo and job.logprobs is None:
            return []
        streams: list[OutputStream] = []
        interval = self.settings.stream_interval if job.stream and not job.beams else math.inf
        try:
            for place, (prompt, params) in enumerate(zip(job.prompts, job.params, strict=True)):
                given: dict[str, Any] = {"prompt_token_ids": prompt.ids}
                if prompt.text is not None:
                    given["prompt"] = prompt.text
                if job.cache_salt is not None:
                    given["cache_salt"] = job.cache_salt
                options: dict[str, Any] = {"request_id": f"{job.request_id}-{place}", "priority": job.priority, "interval": interval}
                if isinstance(params, BeamSearchParams):
                    streams.append(self.engine.beam_search(given, params, **options))
                else:
                    streams.append(self.engine.generate(given, params, **options))
                await streams[-1].start()
        except BaseException:
            for stream in streams:
                stream.drop()
            raise
        return streams

    async def whole(self, job: Job, streams: Sequence[OutputStream], deadline: float) -> list[RequestOutput | None]:
        """The last output of each prompt. Raises ApiError."""
        outputs: list[RequestOutput | None] = [None] * len(job.prompts)
        try:
            async with asyncio.timeout_at(deadline):
                async for place, output in merged(streams):
                    self._count(job, place, streams[place], output)
                    outputs[place] = output
        except Exception as error:
            job.failed = True
            raise self.told(error) from error
        return outputs

    async def stream(self, streams: Sequence[OutputStream], reply: Reply, deadline: float, write: Write) -> None:
        """Write the events of an answer as it grows. Never raises: what goes wrong is the last event."""
        try:
            async with asyncio.timeout_at(deadline):
                await write(reply.opening())
                if not streams:
                    await write("".join(reply.grown(place, None) for place in range(len(reply.job.prompts))) + reply.closing(), last=True)
                async for place, output in merged(streams):
                    self._count(reply.job, place, streams[place], output)
                    text = reply.grown(place, output)
                    if reply.job.ended < len(streams):
                        await write(text)
                    else:
                        await write(text + reply.closing(), last=True)
        except Exception as error:
            reply.job.failed = True
            try:
                told = self.told(error)
            except Exception:
                logger.error("%s failed", reply.job.request_id, exc_info=error)
                told = mistake(reply.job.request_id)
            with suppress(TimeoutError):                    # a client that reads nothing is not waited for
                async with asyncio.timeout(LAST_WORD):
                    await write(event(told.body()), last=True)

    def _count(self, job: Job, place: int, stream: OutputStream, output: RequestOutput) -> None:
        self._begun(job, place, stream)
        if output.finished:
            if any(done.finish_reason == "abort" for done in output.outputs):
                raise ApiError(500, "the engine had to end this request: the model gave numbers that are not finite", code="request_aborted")
            self.stats.last(output)
            job.ended += 1
            self._ended += 1

    def _begun(self, job: Job, place: int, stream: OutputStream) -> None:
        if place not in job.begun and stream.prepared is not None:
            job.begun.add(place)
            self.stats.begun(stream.prepared)

    def ended(self, job: Job, streams: Sequence[OutputStream]) -> None:
        """Count what became of the prompts that have not ended."""
        self._ended -= job.ended
        for place, stream in enumerate(streams):
            self._begun(job, place, stream)
        if job.failed:
            self.stats.failed += len(streams) - job.ended
        else:
            self.stats.dropped += len(streams) - job.ended

    def told(self, error: Exception) -> ApiError:
        """What a client is told of an error; the log has the rest. Raises again what nobody has foreseen."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, TimeoutError):
            return ApiError(504, f"no answer within {self.settings.request_timeout:g} seconds, this server's limit", code="request_timeout")
        if isinstance(error, RequestFailedError):
            if self.engine.closed:
                return stopped()
            if error.__cause__ is not None:
                self._failed(error.__cause__)
            return ApiError(500, "the engine failed in the middle of this request; the server's log says why", code="engine_failed")
        if isinstance(error, ValueError | TypeError):
            return refusal(error, FIELDS)
        raise error

    # -- an engine that fails --------------------------------------------------------------------------------------------------------
    def _failed(self, cause: BaseException) -> None:
        """Say so, take no new requests, and try the engine until it answers again."""
        if self.failure is None:
            self.failure = type(cause).__name__
            logger.error("the engine failed; requests are refused until it answers a probe", exc_info=cause)
            self._probe = asyncio.ensure_future(self._until_it_answers())

    async def _until_it_answers(self) -> None:
        pause = PROBES[0]
        while not self.engine.closed:
            await asyncio.sleep(pause)
            pause = min(2 * pause, PROBES[1])
            try:
                # A manager that reserves by length wants to know it.
                async for _ in self.engine.generate([0], SamplingParams(max_tokens=1, ignore_eos=True)):
                    pass
            except Exception as error:                      # it fails again, or is closed meanwhile
                logger.warning("the engine still fails: %s", error)
                continue
            self.failure = None
            logger.warning("the engine answers again")
            return

    def close(self) -> None:
        self._unwatch()
        if self._probe is not None:
            self._probe.cancel()


class Places:
    """Places in the queue; `leave` gives them back, once."""

    def __init__(self, service: Service, count: int) -> None:
        self._service, self._count = service, count
        service.in_flight += count

    def leave(self) -> None:
        self._service.in_flight -= self._count
        self._count = 0


async def merged(streams: Sequence[OutputStream]) -> AsyncIterator[tuple[int, RequestOutput]]:
    """The outputs of several streams as they come, each with its place among them."""
    if len(streams) == 1:
        async for output in streams[0]:
            yield 0, output
        return
    waiting = {asyncio.ensure_future(anext(stream)): place for place, stream in enumerate(streams)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                place = waiting.pop(task)
                output = task.result()
                if not output.finished:
                    waiting[asyncio.ensure_future(anext(streams[place]))] = place
                yield place, output
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
