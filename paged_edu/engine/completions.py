"""Completions: the text of each output sequence and its log-probabilities, found again from its tokens whenever they are asked for.

A text belongs to a sequence and *catches up* with its output tokens, as the cache does with `num_computed_tokens`. So a fork, a preemption, a
recovery or a step that was interrupted need nothing here: whatever was lost is read again from the tokens. The same holds for the
log-probabilities, which the runner gives by token id and which get their texts here.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..core.sequence import Request, Sequence
from ..sampling.beam import BeamSearchParams, ended, hypotheses, rank
from ..sampling.detokenize import Detokenizer
from ..sampling.logprobs import TokenLogprobs
from ..sampling.params import SamplingParams
from ..sampling.stop import OutputText, Stop
from .outputs import CompletionOutput
from .prepared import PreparedRequest


class Completions:
    """Texts of the live requests. Without a tokenizer (None) every text is empty."""

    def __init__(self, tokenizer: Any = None) -> None:
        self._detokenizer = Detokenizer(tokenizer) if tokenizer is not None else None
        self._texts: dict[str, dict[int, OutputText]] = {}      # request id -> sequence id -> its text so far
        self._logprobs: dict[str, dict[int, list[TokenLogprobs]]] = {}
        self.shown: dict[str, dict[int, int]] = {}
        """How many characters of each text were in the output that was returned last."""

    def of(self, request: Request, params: SamplingParams | BeamSearchParams) -> tuple[CompletionOutput, ...]:
        """The outputs of a request so far.

        Those of a beam search are its live branches, best first, and at its end its best hypotheses. Until then a better branch may take
        the place of any of them, so the text of each is its delta at the end, as a whole.
        """
        if not isinstance(params, BeamSearchParams):
            return tuple(self.completion(seq, params) for seq in request.sequences)
        best = request.live
        if request.finished:
            best = [ended(request)[i] for i in rank(hypotheses(request), params)]
        outputs = []
        for index, seq in enumerate(best):
            done = self.completion(seq, params)
            outputs.append(replace(done, index=index, cumulative_logprob=seq.cumulative_logprob, delta=done.text if request.finished else ""))
        return tuple(outputs)

    def find_stop(self, seq: Sequence, params: SamplingParams | BeamSearchParams) -> Stop | None:
        """The stop string in the text of ``seq``, if there is one."""
        if not params.stop:
            return None
        text = self._read(seq, params)
        return text.stop if text is not None else None

    def completion(self, seq: Sequence, params: SamplingParams | BeamSearchParams) -> CompletionOutput:
        """The output of ``seq`` so far. A stop string wins over any other end: those are found on later tokens, or on the same one."""
        ids, reason, stop_reason, shown, delta = seq.output_token_ids, seq.finish_reason, seq.stop_reason, "", ""
        text = self._read(seq, params)
        if text is not None:
            if text.stop is not None:
                ids, reason, stop_reason = ids[: text.stop.num_tokens], "stop", text.stop.string
            shown = text.text
            delta = shown[self.shown.get(seq.request.request_id, {}).get(seq.seq_id, 0) :]
        logprobs = total = None
        if isinstance(params, SamplingParams) and params.logprobs is not None:
            logprobs = tuple(self._of_tokens(seq)[: len(ids)])
            total = sum((entry[token].logprob for entry, token in zip(logprobs, ids, strict=True)), 0.0)
        return CompletionOutput(seq.branch, shown, tuple(ids), reason, stop_reason, total, logprobs, delta)

    def prompt_logprobs(self, record: PreparedRequest) -> tuple[TokenLogprobs | None, ...] | None:
        """Those of the prompt, if asked for: as many as there are so far."""
        if not isinstance(record.params, SamplingParams) or record.params.prompt_logprobs is None:
            return None
        for entry in record.prompt_token_logprobs[len(record.shown_prompt) - 1 :]:
            record.shown_prompt.append(self._with_texts(entry))
        return tuple(record.shown_prompt)

    def _of_tokens(self, seq: Sequence) -> list[TokenLogprobs]:
        """The log-probabilities of the output tokens of ``seq``, with texts; they catch up one by one."""
        entries = self._logprobs.setdefault(seq.request.request_id, {}).setdefault(seq.seq_id, [])
        for entry in seq.logprobs[len(entries) : seq.num_output_tokens]:
            entries.append(self._with_texts(entry))
        return entries

    def _with_texts(self, entry: TokenLogprobs) -> TokenLogprobs:
        if self._detokenizer is None:
            return entry
        texts = {token: self._detokenizer.token(token) for token in entry}
        return {token: known._replace(decoded_token=texts[token][0], bytes=texts[token][1]) for token, known in entry.items()}

    def _read(self, seq: Sequence, params: SamplingParams | BeamSearchParams) -> OutputText | None:
        """Catch up with the tokens of ``seq``.

        The text is out of the table meanwhile: if this is interrupted, a half-read one is gone and will be read again from the start.
        """
        if self._detokenizer is None:
            return None
        texts = self._texts.setdefault(seq.request.request_id, {})
        text = texts.pop(seq.seq_id, None)
        if text is None:
            text = OutputText(self._detokenizer.stream(skip_special_tokens=params.skip_special_tokens), params)
        end = seq.num_tokens
        if seq.finish_reason == "stop" and not isinstance(seq.stop_reason, str) and not params.include_stop_str_in_output:
            end -= 1                    # the token that ended it is no part of the text, though it is one of the tokens
        text.read(seq.token_ids[len(seq.request.prompt_token_ids) + text.num_tokens : end])
        if seq.finished:
            text.end()
        texts[seq.seq_id] = text
        return text

    def shown_with(self, request_ids: Iterable[str]) -> dict[str, dict[int, int]]:
        """What `shown` becomes when the outputs that have just been made of these requests have been returned."""
        return self.shown | {
            request_id: {seq_id: len(text.text) for seq_id, text in self._texts.get(request_id, {}).items()} for request_id in request_ids
        }

    def forget(self, request_id: str) -> None:
        self._texts.pop(request_id, None)
        self._logprobs.pop(request_id, None)
        self.shown.pop(request_id, None)
