"""The application: FastAPI's routes over a `Service`, with OpenAI's error objects for everything that is wrong."""
from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import Response

from .. import __version__
from ..engine.output_stream import OutputStream
from . import live
from .errors import ApiError, mistake, validation
from .gate import BodyError, Gate
from .metrics import Snapshot, exposition
from .params import Job, prompts_of
from .replies import Reply
from .schemas import ChatReply, ChatRequest, CompletionReply, CompletionRequest, ErrorReply, ModelCard, ModelList
from .service import Service
from .sse import EventStream, while_connected

PATHS = ("/", "/health", "/live", "/live.js", "/metrics", "/openapi.json", "/v1/models", "/v1/completions", "/v1/chat/completions")
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply, "description": what} for status, what in {
        400: "something in the request is wrong, or not served", 401: "no API key, or another one", 403: "another name in Host", 404: "no such model",
        408: "the body came too slowly",
        413: "the body is too large", 415: "the body is not application/json", 429: "the queue is full; Retry-After says when to come again",
        500: "the engine failed", 503: "the server is stopping, or its engine has failed", 504: "no answer in time",
    }.items()
}


class Json(Response):
    """JSON in ASCII: whatever a client has sent can be said back."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode()


def create_app(service: Service) -> Gate:
    """The whole application; ``gate.answered`` counts its answers."""
    api = FastAPI(
        title="paged_edu", version=__version__, docs_url=None, redoc_url=None,           # their pages come from a CDN
        description="OpenAI's interface over PagedAttention. Fields that are not OpenAI's have vLLM's names.",
    )
    gate = Gate(api, service.settings, PATHS)
    _add_errors(api)
    _add_models(api, service)
    _add_generation(api, service)
    _add_watching(api, service, gate)
    if not service.settings.no_page:
        live.add_routes(api, service)
    return gate


def _add_errors(api: FastAPI) -> None:
    def answer(error: ApiError) -> Response:
        return Response(error.encoded(), error.status, error.headers, "application/json")

    @api.exception_handler(ApiError)
    async def ours(request: Request, error: ApiError) -> Response:
        return answer(error)

    @api.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:      # raised again after this, for the log
        return answer(mistake(request.scope["state"]["request_id"]))

    @api.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(validation(error.errors()))

    @api.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        if isinstance(error, BodyError):
            return answer(error.told)
        said = {404: f"there is no {request.url.path[:200]!a} here", 405: f"{request.method[:20]} is not for this path"}
        return answer(ApiError(error.status_code, said.get(error.status_code, str(error.detail)), headers=error.headers))


def _add_models(api: FastAPI, service: Service) -> None:
    def card(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": service.started, "owned_by": "paged_edu", "max_model_len": service.max_model_len}

    @api.get("/v1/models", response_model=ModelList, responses={401: ERRORS[401]})
    async def models() -> Response:
        """The model, by each of its names."""
        return Json({"object": "list", "data": [card(name) for name in service.names]})

    @api.get("/v1/models/{name:path}", response_model=ModelCard, responses={401: ERRORS[401], 404: ERRORS[404]})
    async def model(name: str) -> Response:
        """One of its names."""
        service.check_model(name)
        return Json(card(name))


def _add_generation(api: FastAPI, service: Service) -> None:
    events = {"text/event-stream": {"schema": {"type": "string"}}}

    @api.post("/v1/completions", response_model=CompletionReply, responses={200: {"content": events}, **ERRORS})
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Texts that go on where a prompt ends."""
        return await _generate(service, request, body)

    @api.post("/v1/chat/completions", response_model=ChatReply, responses={200: {"content": events}, **ERRORS})
    async def chat(body: ChatRequest, request: Request) -> Response:
        """The model's answer to a conversation, which its chat template turns into a prompt."""
        return await _generate(service, request, body)


async def _generate(service: Service, request: Request, body: CompletionRequest | ChatRequest) -> Response:
    deadline = asyncio.get_running_loop().time() + service.settings.request_timeout
    service.check_open()
    service.check_model(body.model)
    places = service.take(len(prompts_of(body)) if isinstance(body, CompletionRequest) else 1)
    streams: list[OutputStream] = []
    try:
        job = await (service.completion(body) if isinstance(body, CompletionRequest) else service.chat(body))
        streams = await service.start(job)
        reply = Reply(job, service.engine.tokenizer)
    except BaseException as error:
        places.leave()
        if isinstance(error, Exception):
            if isinstance(error, RuntimeError):
                service.check_open()
            raise service.told(error) from error
        raise
    notes = request.scope["state"]["notes"]
    _note(notes, service, job)

    def release() -> None:
        """The request needs nothing any more: what the engine still has of it goes after its step."""
        for stream in streams:
            stream.drop()
        service.ended(job, streams)
        places.leave()
        _note_end(notes, service, reply)

    if job.stream:
        return EventStream(lambda write: service.stream(streams, reply, deadline, write), release)
    try:
        return Json(reply.whole(await while_connected(request.receive, service.whole(job, streams, deadline))))
    finally:
        release()


def _note(notes: dict[str, Any], service: Service, job: Job) -> None:
    notes["id"] = job.request_id
    notes["prompt_tokens"] = sum(len(prompt.ids) for prompt in job.prompts)
    if job.user is not None:
        notes["user"] = ascii(job.user)
    if service.settings.log_prompts:
        notes["prompts"] = ascii(job.messages if job.chat else [prompt.text if prompt.text is not None else prompt.ids for prompt in job.prompts])


def _note_end(notes: dict[str, Any], service: Service, reply: Reply) -> None:
    usage = reply.usage()
    notes["completion_tokens"], notes["cached_tokens"] = usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    if service.settings.log_prompts:
        notes["texts"] = ascii(reply.texts())


def _add_watching(api: FastAPI, service: Service, gate: Gate) -> None:
    @api.get("/health", responses={503: {"description": "stopping, or the engine has failed"}})
    async def health() -> Response:
        """Whether requests are taken."""
        return Json(service.health(), 200 if service.healthy else 503)

    @api.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """For Prometheus."""
        snapshot = await service.engine.between_steps(Snapshot.of)
        text = exposition(snapshot, service.engine_stats, service.stats, gate.answered, service.healthy, service.in_flight)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})
