"""The requests of OpenAI's interface as pydantic models, and what this server refuses of it by name. Ranges are checked by `SamplingParams`.

Fields below "extensions" are not OpenAI's: they have vLLM's names, and the ``openai`` client sends them with ``extra_body``.
"""
from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from .settings import MAX_LOGPROBS

UNSERVED: dict[str, tuple[Any, ...]] = {
    "metadata": (), "store": (False,), "service_tier": ("auto", "default"), "safety_identifier": (), "prompt_cache_key": (),
    "guided_json": (), "guided_regex": (), "guided_choice": (), "guided_grammar": (), "structured_outputs": (), "lora_request": (),
}
"""Parameters of both endpoints that are known and not served -> the values that ask for nothing, besides null."""
UNSERVED_COMPLETION = UNSERVED | {"suffix": ("",)}
UNSERVED_CHAT = UNSERVED | {
    "tools": ([],), "tool_choice": ("none", "auto"), "parallel_tool_calls": (True, False), "functions": ([],), "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},), "modalities": (["text"],), "audio": (), "prediction": (), "reasoning_effort": ("none",), "verbosity": (),
    "web_search_options": (), "chat_template": (), "chat_template_kwargs": ({},), "documents": ([],),
}


def limits(low: float, high: float | None = None, *, above: bool = False) -> dict[str, Any]:
    """Limits for the OpenAPI document. They are checked elsewhere, where an error can say what they come from."""
    return {"exclusiveMinimum" if above else "minimum": low} | ({} if high is None else {"maximum": high})


MESSAGE = {
    "type": "object", "required": ["role", "content"], "properties": {
        "role": {"type": "string", "enum": ["system", "developer", "user", "assistant"]}, "name": {"type": "string"},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {
            "type": "object", "required": ["type", "text"], "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        }}]},
    },
}


class _First(FailFast):
    """pydantic's own, with a hash, which `typing` asks for in a union."""

    __hash__ = object.__hash__


FIRST = _First()
"""Of a list, the first mistake only: a body of 2 MiB has room for a million."""


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = Field(None, description="send a last chunk with the usage and no choices")
    include_obfuscation: Literal[False] | None = Field(None, description="padding against eavesdroppers: not served")


class GenerationRequest(BaseModel):
    """What both endpoints have."""

    model_config = ConfigDict(extra="forbid", strict=True)
    unserved: ClassVar[dict[str, tuple[Any, ...]]] = UNSERVED

    model: str = Field(description="one of those in /v1/models")
    n: int | None = Field(None, description="texts for each prompt (1)", json_schema_extra=limits(1))
    temperature: float | None = Field(None, description="0: always the most probable token (1)", json_schema_extra=limits(0))
    top_p: float | None = Field(
        None, description="keep the most probable tokens that together reach it (1)", json_schema_extra=limits(0, 1, above=True),
    )
    presence_penalty: float | None = Field(
        None, description="-2 to 2: taken from the logit of each token that the text has (0)", json_schema_extra=limits(-2, 2),
    )
    frequency_penalty: float | None = Field(
        None, description="-2 to 2: taken once for each time that the text has it (0)", json_schema_extra=limits(-2, 2),
    )
    logit_bias: dict[str, float] | None = Field(None, description="token id -> what is added to its logit, -100 to 100")
    stop: str | Annotated[list[str], FIRST] | None = Field(None, description="texts that end the answer, at most 16; it ends before them")
    seed: int | None = Field(None, description="same seed, same request: same answer; taken modulo 2**64")
    stream: bool | None = Field(None, description="send the answer as it grows (false)")
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, max_length=256, description="written to the server's log")
    # -- extensions
    top_k: int | None = Field(None, description="keep the k most probable tokens; 0: all", json_schema_extra=limits(-1))
    min_p: float | None = Field(
        None, description="keep tokens with this share of the most probable one's probability", json_schema_extra=limits(0, 1),
    )
    repetition_penalty: float | None = Field(
        None, description="above 1: avoid tokens of prompt and answer (1)", json_schema_extra=limits(0, above=True),
    )
    min_tokens: int | None = Field(None, description="no end before that many tokens", json_schema_extra=limits(0))
    ignore_eos: bool | None = Field(None, description="go on after the model's end token")
    stop_token_ids: Annotated[list[int], FIRST] | None = Field(None, description="tokens that end the answer")
    include_stop_str_in_output: bool | None = Field(None, description="end with the stop text instead of before it")
    skip_special_tokens: bool | None = Field(None, description="leave special tokens out of the text (true)")
    priority: int | None = Field(None, description="the smaller the sooner, on a server with --scheduling-policy priority")
    cache_salt: str | None = Field(None, description="only requests with the same one share cached prefixes")
    use_beam_search: bool | None = Field(None, description="search for the n most probable texts instead of sampling")
    beam_width: int | None = Field(None, description="the same with more beams than texts", json_schema_extra=limits(1))
    length_penalty: float | None = Field(None, description="of a beam search: above 0 favours long texts (1)")
    early_stopping: bool | Literal["never"] | None = Field(None, description="of a beam search: whether the first n finished texts will do")

    @model_validator(mode="before")
    @classmethod
    def _refuse_by_name(cls, data: Any) -> Any:
        """What is not served is an error that names it; a value of it that asks for nothing is left out."""
        if not isinstance(data, dict):
            return data
        kept = {}
        for name, value in data.items():
            if name in cls.unserved:
                if value is not None and not any(type(value) is type(neutral) and value == neutral for neutral in cls.unserved[name]):
                    raise PydanticCustomError("unsupported_parameter", "{param} is not served: leave it out", {"param": name})
            elif name in cls.model_fields:
                kept[name] = value
            else:
                near = get_close_matches(str(name), cls.model_fields, 1)
                said = "there is no parameter {param}" + (f"; did you mean {near[0]}?" if near else "")
                raise PydanticCustomError("unknown_parameter", said, {"param": ascii(name)[1:65].rstrip("'")})
        return kept


Token = Annotated[int, Field(ge=0)]


class CompletionRequest(GenerationRequest):
    unserved: ClassVar[dict[str, tuple[Any, ...]]] = UNSERVED_COMPLETION

    prompt: str | Annotated[list[str], FIRST] | Annotated[list[Token], FIRST] | Annotated[list[
        Annotated[list[Token], FIRST]], FIRST] = Field(description="a prompt or several; each text or token ids")
    max_tokens: int | None = Field(
        None, description="at most that many tokens (16; fewer where the model has no room); 0 with echo", json_schema_extra=limits(0),
    )
    echo: bool | None = Field(None, description="begin the text with the prompt, and its log-probabilities, if asked for, too")
    logprobs: int | None = Field(
        None, description="with each token the log-probabilities of so many most probable ones; at most 20",
        json_schema_extra=limits(0, MAX_LOGPROBS),
    )
    best_of: int | None = Field(None, description="n, or nothing: a choice among more texts is not served", json_schema_extra=limits(1))


class ChatRequest(GenerationRequest):
    unserved: ClassVar[dict[str, tuple[Any, ...]]] = UNSERVED_CHAT

    messages: Annotated[list[Annotated[dict[str, Any], WithJsonSchema(MESSAGE)]], FIRST] = Field(
        description='{"role": ..., "content": text or parts of type "text"}', min_length=1,
    )
    max_tokens: int | None = Field(None, description="at most that many tokens (what the model has room for)", json_schema_extra=limits(0))
    max_completion_tokens: int | None = Field(None, description="the same by its newer name", json_schema_extra=limits(1))
    logprobs: bool | None = Field(None, description="send each token's log-probability")
    top_logprobs: int | None = Field(
        None, description="and those of so many most probable ones; at most 20", json_schema_extra=limits(0, MAX_LOGPROBS),
    )
    # -- extensions
    add_generation_prompt: bool | None = Field(None, description="end the prompt with the words that begin an answer (true)")
    continue_final_message: bool | None = Field(None, description="go on with the last message")


# -- answers, for the OpenAPI document -------------------------------------------------------------------------------------------------
class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    error: ErrorDetail


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


class CompletionReply(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: Usage
    system_fingerprint: str


class ChatReply(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: Usage
    system_fingerprint: str


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]
