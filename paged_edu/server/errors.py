"""ApiError: what a client is told, as OpenAI's error object, and how the package's own errors become one. Never a stack trace."""
from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from ..checks import UnsupportedError

KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error", 405: "invalid_request_error",
    408: "timeout_error", 413: "invalid_request_error", 415: "invalid_request_error", 429: "rate_limit_error", 500: "server_error",
    503: "overloaded_error", 504: "timeout_error",
}


class ApiError(Exception):
    """An answer that is no success. ``param``: the field of the request that is wrong; ``code``: a word for programs."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def encoded(self) -> bytes:
        """ASCII: a message may quote anything that a client has sent, lone surrogates too."""
        return json.dumps(self.body()).encode()


def mistake(request_id: str) -> ApiError:
    """A mistake of ours: the log has it, the client does not."""
    return ApiError(500, f"the server failed; its log has more under {request_id}", code="internal_error")


def retry(status: int, message: str, seconds: int, code: str) -> ApiError:
    """Not now: come again in so many seconds."""
    return ApiError(status, message, code=code, headers={"Retry-After": str(seconds)})


def stopping(headers: Mapping[str, str] | None = None) -> ApiError:
    said = "the server is stopping: it finishes the requests that it has and takes no new ones"
    return ApiError(503, said, code="draining", headers={"Retry-After": "5", **(headers or {})})


def stopped() -> ApiError:
    return ApiError(503, "the server was stopped before this request had ended", code="stopped", headers={"Connection": "close"})


def refusal(error: ValueError | TypeError, fields: Container[str]) -> ApiError:
    """What the engine or the parameters refused: the client's mistake, in the words that say value and limit. They begin with one of ``fields``
    where it is one field that is wrong."""
    said = " ".join(str(error).split()) or type(error).__name__
    named = re.match(r"\w+(?=[ :=])", said)
    name = None if named is None else "prompt" if named[0] == "prompt_token_ids" else named[0]      # the engine's word for it
    code = "unsupported_value" if isinstance(error, UnsupportedError) else None
    return ApiError(400, said, param=name if name is not None and name in fields else None, code=code)


EXPECTED = {
    "prompt": "text, a list of texts, token ids or a list of lists of token ids", "stop": "text or a list of texts",
    "early_stopping": "true, false or 'never'", "messages": "a list of messages", "logit_bias": "an object of token ids and numbers",
    "stop_token_ids": "a list of token ids",
}
WORDS = {
    "int_type": "an integer", "float_type": "a number", "bool_type": "true or false", "string_type": "text", "dict_type": "an object",
    "list_type": "a list", "model_type": "an object", "model_attributes_type": "an object", "int_from_float": "an integer",
    "string_unicode": "valid text", "finite_number": "a finite number",
}
SHOWN = 80
"""Characters of a client's own value that an error repeats."""


def validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """pydantic's errors as one sentence about the first field that is wrong."""
    first = errors[0]
    where = [str(part)[:80] for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is no JSON: {first.get('ctx', {}).get('error', first['msg'])}", code="invalid_json")
    if not where:
        own = first["type"] in ("unsupported_parameter", "unknown_parameter")
        if own:
            return ApiError(400, first["msg"], param=first.get("ctx", {}).get("param"), code=first["type"])
        return ApiError(400, "the body must be a JSON object" if first["type"] != "value_error" else str(first["msg"]))
    name = where[0]
    if first["type"] == "missing":
        return ApiError(400, f"{'.'.join(where)} is missing", param=name, code="missing_required_parameter")
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"there is no parameter {'.'.join(where)!r}", param=name, code="unknown_parameter")
    value = _shown(first.get("input"))
    wanted = EXPECTED.get(name) or WORDS.get(first["type"])
    if wanted is None:
        return ApiError(400, f"{'.'.join(where)}: {first['msg']}, not {value}", param=name)
    return ApiError(400, f"{name if name in EXPECTED else '.'.join(where)} must be {wanted}, not {value}", param=name)


def _shown(value: Any) -> str:
    text = ascii(value) if len(str(value)[:10_000]) < 10_000 else f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
