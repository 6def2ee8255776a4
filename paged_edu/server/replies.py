"""Replies: outputs of the engine as OpenAI's JSON, whole or chunk by chunk."""
from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import __version__
from ..engine.outputs import CompletionOutput, RequestOutput
from ..sampling.logprobs import Logprob, TokenLogprobs
from .params import Job

FINGERPRINT = f"paged_edu-{__version__}"
REPLACEMENT = "�"


@dataclass(slots=True)
class _Sent:
    """What a client has of one choice."""

    tokens: int = 0
    """Output tokens whose log-probabilities it has."""
    characters: int = 0
    offset: int = 0
    """Characters of those tokens, and of an echoed prompt's."""
    begun: bool = False
    finished: bool = False


class Reply:
    """The answer to one `Job`. Choices of several prompts are numbered through: prompt 0's, prompt 1's, ..."""

    def __init__(self, job: Job, tokenizer: Any) -> None:
        self.job = job
        self._tokenizer = tokenizer
        self._sent: dict[int, _Sent] = {}
        self._latest: dict[int, RequestOutput] = {}
        kind = ("chat.completion.chunk" if job.stream else "chat.completion") if job.chat else "text_completion"
        self._head = {
            "id": ("chatcmpl-" if job.chat else "cmpl-") + job.request_id, "object": kind, "created": int(time.time()), "model": job.model,
            "system_fingerprint": FINGERPRINT,
        }
        self._before = f"data: {_encode(self._head)[:-1]},\"choices\":["
        self._after = ('],"usage":null}' if job.include_usage else "]}") + "\n\n"
        self._frame: tuple[str, str] | None = None
        """What is left and right of the text in a choice that only grows; None where it comes with log-probabilities."""
        if job.logprobs is None:
            ends = ',"logprobs":null,"finish_reason":null,"stop_reason":null}'
            self._frame = (',"delta":{"content":', "}" + ends) if job.chat else (',"text":', ends)

    # -- whole -----------------------------------------------------------------------------------------------------------------------
    def whole(self, outputs: Sequence[RequestOutput | None]) -> dict[str, Any]:
        """The answer at its end. None: a prompt that the engine has not seen, of a job that only echoes."""
        choices = []
        for place, output in enumerate(outputs):
            if output is not None:
                self._latest[place] = output
            for branch in range(self.job.num_choices):
                if output is not None and branch >= len(output.outputs):
                    break                                   # a beam search that found fewer
                done = output.outputs[branch] if output is not None else None
                choices.append(self._choice(place, branch, output, done, _Sent(), whole=True))
        return self._head | {"choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        prompt = sum(len(prompt.ids) for prompt in self.job.prompts)
        completion = 0 if self.job.only_echo else sum(len(done.token_ids) for output in self._latest.values() for done in output.outputs)
        cached = sum(output.num_cached_tokens for output in self._latest.values())
        return {
            "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def texts(self) -> list[str]:
        """What was written so far, of every choice."""
        return [done.text for _, output in sorted(self._latest.items()) for done in output.outputs]

    # -- as it grows -----------------------------------------------------------------------------------------------------------------
    def opening(self) -> str:
        """The events that come before any token: whose turn it is in a chat."""
        if not self.job.chat:
            return ""
        count = len(self.job.prompts) * self.job.num_choices
        for index in range(count):
            self._sent[index] = _Sent(begun=True)
        return "".join(
            self._event({"index": i, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}) for i in range(count)
        )

    def grown(self, place: int, output: RequestOutput | None) -> str:
        """The events for what is new in an output of prompt ``place``: one for each choice that has something new."""
        if output is not None:
            self._latest[place] = output
            if self.job.beams and not output.finished:
                return ""                                   # until its end a better beam may take the place of any of them
        events = []
        for branch in range(self.job.num_choices):
            sent = self._sent.setdefault(place * self.job.num_choices + branch, _Sent())
            done = output.outputs[branch] if output is not None and branch < len(output.outputs) else None
            if sent.finished or (done is None and not self.job.only_echo):
                continue
            ended, echoes = done is None or done.finish_reason is not None, self.job.echo and not sent.begun
            if ended or echoes or (done is not None and len(done.text) > sent.characters):
                if done is not None and self._frame is not None and not (ended or echoes):
                    # Most events are text that comes without anything else: as `_choice` has it, whose form was encoded once.
                    left, right = self._frame
                    index = place * self.job.num_choices + branch
                    events.append(f'{self._before}{{"index":{index}{left}{_quoted(done.text[sent.characters :])}{right}{self._after}')
                else:
                    events.append(self._event(self._choice(place, branch, output, done, sent, whole=False)))
                sent.begun, sent.finished = True, ended
                if done is not None:
                    sent.tokens, sent.characters = len(done.token_ids), len(done.text)
        return "".join(events)

    def closing(self) -> str:
        """The last events."""
        usage = event(self._head | {"choices": [], "usage": self.usage()}) if self.job.include_usage else ""
        return usage + "data: [DONE]\n\n"

    def _event(self, choice: dict[str, Any]) -> str:
        """As `event`; what all chunks have in common was encoded once."""
        return f"{self._before}{_encode(choice)}{self._after}"

    # -- a choice --------------------------------------------------------------------------------------------------------------------
    def _choice(
        self, place: int, branch: int, output: RequestOutput | None, done: CompletionOutput | None, sent: _Sent, *, whole: bool,
    ) -> dict[str, Any]:
        index = place * self.job.num_choices + branch
        if done is None or self.job.only_echo:
            ends: dict[str, Any] = {"finish_reason": "length", "stop_reason": None}
            text = ""
        else:
            ends = {"finish_reason": done.finish_reason, "stop_reason": done.stop_reason}
            text = done.text[sent.characters :]
        if self.job.chat:
            said = {"content": self._chat_logprobs(done, sent), "refusal": None} if self.job.logprobs is not None and done is not None else None
            if whole:
                return {"index": index, "message": {"role": "assistant", "content": text, "refusal": None}, "logprobs": said, **ends}
            return {"index": index, "delta": {"content": text} if text else {}, "logprobs": said, **ends}
        echoes = self.job.echo and not sent.begun
        echoed = self.prompt_text(place) if echoes else ""
        logprobs = None
        if self.job.logprobs is not None:
            known = list(output.prompt_logprobs or ()) if echoes and output is not None else []
            logprobs = self._completion_logprobs(place, known, done, sent)
        return {"index": index, "text": echoed + text, "logprobs": logprobs, **ends}

    def prompt_text(self, place: int) -> str:
        prompt = self.job.prompts[place]
        if prompt.text is not None:
            return prompt.text
        return str(self._tokenizer.decode(list(prompt.ids))) if self._tokenizer is not None else ""

    def _completion_logprobs(
        self, place: int, prompt: list[TokenLogprobs | None], done: CompletionOutput | None, sent: _Sent,
    ) -> dict[str, Any]:
        """OpenAI's older form: four lists, an entry for each token; the first token of a prompt has no log-probability."""
        ids = self.job.prompts[place].ids[: len(prompt)]
        entries: list[tuple[int, TokenLogprobs | None]] = list(zip(ids, prompt, strict=True))
        if done is not None and done.logprobs is not None and not self.job.only_echo:
            entries += list(zip(done.token_ids[sent.tokens :], done.logprobs[sent.tokens :], strict=True))
        tokens, values, tops, offsets = [], [], [], []
        for token, entry in entries:
            own = entry[token] if entry is not None else None
            text = own.decoded_token if own is not None else self._tokenizer.decode([token]) if self._tokenizer is not None else None
            tokens.append(_name(own, text))
            values.append(own.logprob if own is not None else None)
            tops.append(_by_name(entry) if entry is not None else None)
            offsets.append(sent.offset)
            sent.offset += len(text or "")
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _chat_logprobs(self, done: CompletionOutput, sent: _Sent) -> list[dict[str, Any]]:
        return [
            _detailed(entry[token]) | {"top_logprobs": [_detailed(other) for other in list(entry.values())[: self.job.logprobs]]}
            for token, entry in zip(done.token_ids[sent.tokens :], (done.logprobs or ())[sent.tokens :], strict=True)
        ]


def _name(own: Logprob | None, text: str | None) -> str:
    """A token's text, or its bytes where they are no text by themselves."""
    if own is not None and own.bytes is not None and REPLACEMENT in (text or ""):
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in own.bytes)
    return text or ""


def _by_name(entry: TokenLogprobs) -> dict[str, float]:
    """Log-probabilities by text; of tokens with the same text the most probable one's."""
    named: dict[str, float] = {}
    for known in entry.values():
        named.setdefault(_name(known, known.decoded_token), known.logprob)
    return named


def _detailed(known: Logprob) -> dict[str, Any]:
    return {"token": known.decoded_token or "", "logprob": known.logprob, "bytes": list(known.bytes) if known.bytes is not None else None}


_quoted = json.encoder.encode_basestring_ascii
_encode = json.JSONEncoder(separators=(",", ":")).encode


def event(data: dict[str, Any]) -> str:
    """One server-sent event: JSON in ASCII on one line, so no text can end a line or an event."""
    return f"data: {_encode(data)}\n\n"
