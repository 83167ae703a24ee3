"""`text_completion` objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET

from firelane.api.completions import CompletionChoice, CompletionLogprobs, CompletionResponse
from firelane.api.usage import Usage
from firelane.gateway.apis.chat.reports import prompt_logprobs
from firelane.gateway.requests.formats import (
    ChoiceResult,
    EventFrame,
    ResponseIdentity,
    TokenReport,
    encode_json,
    error_event,
    transfer_params,
)
from firelane.text.deltas import Delta
from firelane.text.tokens.tokenizer import Tokenizer


class CompletionEncoder:
    """The ResponseEncoder of /v1/completions."""

    def __init__(self, identity: ResponseIdentity, tokenizer: Tokenizer) -> None:
        self._identity = identity
        self._tokenizer = tokenizer
        self._frame = EventFrame(identity, "text_completion")

    def opening(self, index: int) -> bytes:  # noqa: ARG002
        return b""

    def content_chunks(self, index: int) -> Callable[[Sequence[str]], bytes]:
        before = b'{"index":%d,"text":' % index
        return self._frame.content_chunks(before, b',"logprobs":null,"finish_reason":null}')

    def event(self, part: ChoiceResult, offset: int | None) -> bytes:
        return self._frame.head + encode_json(self._choice(part, offset)) + self._frame.tail

    def delta(self, index: int, delta: Delta) -> bytes:
        raise AssertionError(f"completions split no text: {index}, {delta}")

    def closing(self, usage: Usage) -> bytes:
        return self._frame.closing(usage)

    def failure(self, body: bytes) -> bytes:
        return error_event(body)

    def response(self, results: list[ChoiceResult], usage: Usage, with_logprobs: bool) -> bytes:
        who = self._identity
        return encode_json(
            CompletionResponse(
                id=who.id,
                created=who.created,
                model=who.model,
                system_fingerprint=who.fingerprint,
                service_tier=who.service_tier or UNSET,
                kv_transfer_params=transfer_params(results),
                choices=[self._choice(result, 0 if with_logprobs else None) for result in results],
                usage=usage,
            )
        )

    def _choice(self, part: ChoiceResult, offset: int | None) -> CompletionChoice:
        return CompletionChoice(
            index=part.index,
            text=part.text,
            logprobs=None if offset is None else self._logprobs(part.reports, offset),
            finish_reason=part.reason,
            prompt_logprobs=prompt_logprobs(part.prompt_reports, self._tokenizer),
            token_ids=part.token_ids,
            prompt_token_ids=part.prompt_ids,
        )

    def _name(self, token: int) -> str:
        return f"token_id:{token}" if self._identity.tokens_by_id else self._tokenizer.token_text(token)

    def _logprobs(self, reports: list[TokenReport], offset: int) -> CompletionLogprobs:
        text_of = self._name
        tokens = [text_of(report.token) for report in reports]
        offsets: list[int] = []
        for report in reports:
            offsets.append(offset)
            offset += len(self._tokenizer.token_text(report.token))
        tops: list[dict[str, float] | None] = []
        for report, token in zip(reports, tokens, strict=True):
            best: dict[str, float] = {}
            for top, logprob in report.top:
                best.setdefault(text_of(top), logprob)
            if report.logprob is not None:
                best.setdefault(token, report.logprob)
            tops.append(best if report.logprob is not None else None)
        return CompletionLogprobs(
            text_offset=offsets,
            token_logprobs=[report.logprob for report in reports],
            tokens=tokens,
            top_logprobs=tops,
        )
