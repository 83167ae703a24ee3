"""Response format of /completion and /infill: one JSON object, or events whose last one has `stop` true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from firelane.api.usage import Usage
from firelane.gateway.apis.llama_server.answer import (
    GenerationSettings,
    NativeAnswer,
    NativeLogprob,
    NativePiece,
    StopType,
    timings_of,
)
from firelane.gateway.requests.formats import (
    ChoiceResult,
    LiveUsage,
    TokenReport,
    each,
    encode_json,
    error_event,
)
from firelane.text.deltas import Content, Delta
from firelane.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class NativeIdentity:
    """Fields that an answer repeats. prompt, truncated: as in NativeAnswer. fields: those that are wanted,
    none: all of them. tokens: whether a whole answer tells its token ids.
    """

    model: str
    settings: GenerationSettings
    prompt: str
    truncated: bool
    fields: tuple[str, ...]
    tokens: bool


class NativeEncoder:
    """The ResponseEncoder of one answer. live: knows its usage and times."""

    def __init__(self, identity: NativeIdentity, live: LiveUsage, tokenizer: Tokenizer) -> None:
        self._identity = identity
        self._live = live
        self._tokenizer = tokenizer
        self._has_new_line = False
        self._end = ChoiceResult(0)

    # Streams.

    def opening(self, index: int) -> bytes:  # noqa: ARG002
        return b""

    def content_chunks(self, index: int) -> Callable[[Sequence[str]], bytes]:  # noqa: ARG002
        return each(lambda text: self._piece(text, [], UNSET))

    def event(self, part: ChoiceResult, offset: int | None) -> bytes:
        if part.reason is not None:
            self._end = part
        if not (part.text or part.reports or part.token_ids):
            return b""
        shown = UNSET if offset is None else self._logprobs(part.reports)
        return self._piece(part.text, part.token_ids or [], shown)

    def delta(self, index: int, delta: Delta) -> bytes:  # noqa: ARG002
        assert isinstance(delta, Content), "completions split no text"
        return self._piece(delta.text, [], UNSET)

    def closing(self, usage: Usage) -> bytes:
        answer = self._answer(self._end, "", [], usage)
        return b"data: %b\n\n" % encode_json(answer)

    def failure(self, body: bytes) -> bytes:
        return error_event(body)

    def _piece(self, text: str, tokens: list[int], probabilities: list[NativeLogprob] | UnsetType) -> bytes:
        self._has_new_line |= "\n" in text
        usage = self._live.read() if self._live.read is not None else None
        piece = NativePiece(
            content=text,
            tokens=tokens,
            tokens_predicted=0 if usage is None else usage.completion_tokens,
            tokens_evaluated=0 if usage is None else usage.prompt_tokens,
            completion_probabilities=probabilities,
        )
        return b"data: %b\n\n" % encode_json(piece)

    # An answer in one piece.

    def response(self, results: list[ChoiceResult], usage: Usage, with_logprobs: bool) -> bytes:
        result = results[0]
        self._has_new_line = "\n" in result.text
        tokens = (result.token_ids or []) if self._identity.tokens else []
        answer = self._answer(result, result.text, tokens, usage)
        if with_logprobs:
            answer.completion_probabilities = self._logprobs(result.reports)
        wanted = self._identity.fields
        return encode_json(_picked(answer, wanted) if wanted else answer)

    # Parts.

    def _answer(self, part: ChoiceResult, text: str, tokens: list[int], usage: Usage) -> NativeAnswer:
        assert self._live.times is not None
        who, timings = self._identity, timings_of(usage, self._live.times())
        return NativeAnswer(
            content=text,
            tokens=tokens,
            model=who.model,
            tokens_predicted=usage.completion_tokens,
            tokens_evaluated=usage.prompt_tokens,
            generation_settings=who.settings,
            prompt=who.prompt,
            has_new_line=self._has_new_line,
            truncated=who.truncated,
            stop_type=_stop_type(part),
            stopping_word=part.stop or "",
            tokens_cached=timings.cache_n,
            timings=timings,
        )

    def _logprobs(self, reports: list[TokenReport]) -> list[NativeLogprob]:
        return [self._logprob(report.token, report.logprob, report.top) for report in reports]

    def _logprob(
        self, token: int, logprob: float | None, top: list[tuple[int, float]] | None = None
    ) -> NativeLogprob:
        piece = self._tokenizer.token_bytes(token)
        return NativeLogprob(
            id=token,
            token=piece.decode("utf-8", "replace"),
            bytes=list(piece),
            logprob=logprob or 0.0,
            top_logprobs=UNSET if top is None else [self._logprob(*entry) for entry in top],
        )


def _stop_type(part: ChoiceResult) -> StopType:
    if part.reason != "stop":
        return "limit"
    return "word" if part.stop else "eos"


def _picked(answer: NativeAnswer, wanted: Sequence[str]) -> dict[str, Any]:
    """The fields of these names, each by its name; names that there are not are left out."""
    whole: dict[str, Any] = msgspec.to_builtins(answer)
    found: dict[str, Any] = {}
    for path in wanted:
        value: Any = whole
        for name in path.split("/"):
            value = cast(dict[str, Any], value).get(name, UNSET) if isinstance(value, dict) else UNSET
        if value is not UNSET:
            found[path] = value
    return found
