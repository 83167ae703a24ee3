"""Response format of /v1/responses: one object, or numbered events."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from firelane.api.errors import ErrorEnvelope
from firelane.api.stored.responses import (
    IncompleteDetails,
    InputTokensDetails,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
)
from firelane.api.stored.responses_items import OutputItem, ResponsesLogprob
from firelane.api.usage import OutputTokensDetails, Usage
from firelane.gateway.apis.responses.item_builders import (
    CallBuilder,
    CustomCallBuilder,
    ItemBuilder,
    MessageBuilder,
    ReasoningBuilder,
)
from firelane.gateway.requests.formats import ChoiceResult, TokenReport, each, encode_json
from firelane.text.deltas import CallArguments, CallStart, Content, Delta, Reasoning
from firelane.text.tokens.tokenizer import Tokenizer

Keep = Callable[[ResponseObject, bytes], None]
OwnName = Callable[[str], tuple[str | None, str]]
_ERRORS: msgspec.json.Decoder[ErrorEnvelope] = msgspec.json.Decoder(ErrorEnvelope)


class _Events:
    """Numbers and encodes server-sent events."""

    def __init__(self) -> None:
        self._next = 0

    def make(self, kind: str, **fields: Any) -> bytes:
        head = {"type": kind, "sequence_number": self._number()}
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode_json({**head, **fields}))

    def _number(self) -> int:
        number, self._next = self._next, self._next + 1
        return number

    def delta_maker(self, builder: ItemBuilder, index: int) -> Callable[[str], bytes]:
        """Like `make`, for the pieces of one item: only the number and the text are encoded each time."""
        fields: dict[str, Any] = {"item_id": builder.id, "output_index": index, **builder.delta_fields}
        if isinstance(builder, MessageBuilder):
            fields["logprobs"] = []
        kind = builder.delta_event.encode()
        head = b'event: %b\ndata: {"type":"%b",%b,"sequence_number":' % (
            kind,
            kind,
            encode_json(fields)[1:-1],
        )
        return lambda text: b'%b%d,"delta":%b}\n\n' % (head, self._number(), encode_json(text))


class ResponsesEncoder:
    """One answer, which it fills as the deltas come. keep: gets the finished answer and its JSON. own_name:
    namespace and name of a function that the model names.

    A stream's items are in the order of their coming; an answer in one piece has reasoning, message, calls.
    """

    def __init__(
        self,
        answer: ResponseObject,
        tokenizer: Tokenizer,
        keep: Keep,
        own_name: OwnName = lambda name: (None, name),
    ) -> None:
        self._answer = answer
        self._own_name = own_name
        self._tokenizer = tokenizer
        self._keep = keep
        self._events = _Events()
        self._builder: ItemBuilder | None = None
        self._delta: Callable[[str], bytes] | None = None
        self._reports: list[TokenReport] = []
        self._reason = ""
        self._opened = self._ended = False

    # ResponseEncoder, streams.

    def opening(self, index: int) -> bytes:  # noqa: ARG002
        """Once: an answer in the background opens its stream before it begins."""
        if self._opened:
            return b""
        self._opened = True
        make, answer = self._events.make, self._answer
        return make("response.created", response=answer) + make("response.in_progress", response=answer)

    def content_chunks(self, index: int) -> Callable[[Sequence[str]], bytes]:  # noqa: ARG002
        return each(self._content)

    def _content(self, text: str) -> bytes:
        before = self._item(MessageBuilder)
        return before + self._piece(text) if text else before

    def delta(self, index: int, delta: Delta) -> bytes:  # noqa: ARG002
        if isinstance(delta, Content):
            return self._content(delta.text)
        if isinstance(delta, Reasoning):
            return self._item(ReasoningBuilder) + self._piece(delta.text)
        if isinstance(delta, CallStart):
            namespace, name = self._own_name(delta.name)
            start = replace(delta, name=name)
            builder = CustomCallBuilder if delta.custom else CallBuilder
            return self._close("completed") + self._open(builder(start, namespace))
        return self._piece(delta.text)

    def event(self, part: ChoiceResult, offset: int | None) -> bytes:
        self._reason = part.reason or ""
        if offset is not None and part.reports:
            return self._reported(part)
        return self._content(part.text) if part.text else b""

    def _reported(self, part: ChoiceResult) -> bytes:
        """Reports of a message's tokens. Those of reasoning and calls have no place in an answer; whose the
        first ones are is known when an item opens."""
        self._reports += part.reports
        before = self._item(MessageBuilder) if part.text else b""
        builder = self._builder
        if builder is None:
            return before
        reports, self._reports = self._reports, []
        if not isinstance(builder, MessageBuilder):
            return before
        logprobs = self._logprobs(reports)
        builder.logprobs.extend(logprobs)
        builder.pieces.append(part.text)
        where = {"item_id": builder.id, "output_index": len(self._answer.output), **builder.delta_fields}
        return before + self._events.make(builder.delta_event, **where, delta=part.text, logprobs=logprobs)

    def closing(self, usage: Usage) -> bytes:
        self._ended = True
        closed = self._finish(self._reason, usage)
        kind = f"response.{self._answer.status}"
        self._keep(self._answer, encode_json(self._answer))
        return closed + self._events.make(kind, response=self._answer)

    def failure(self, body: bytes) -> bytes:
        error = _ERRORS.decode(body).error
        self._ended = True
        closed = self.opening(0) + self._close("incomplete")
        self._answer.status = "failed"
        self._answer.error = ResponseFailure(code="server_error", message=error.message)
        return closed + self._events.make("response.failed", response=self._answer)

    def stopped(self) -> bytes:
        """The end of a stream whose answer was ended from outside, as its status says; b"" after another."""
        if self._ended:
            return b""
        self._ended = True
        kind = "response.failed" if self._answer.status == "failed" else "response.incomplete"
        return self.opening(0) + self._events.make(kind, response=self._answer)

    # ResponseEncoder, answers in one piece.

    def response(self, results: list[ChoiceResult], usage: Usage, with_logprobs: bool) -> bytes:
        result = results[0]
        if result.reasoning:
            self.delta(0, Reasoning(result.reasoning))
        if result.text or with_logprobs or not result.calls:
            self._content(result.text)
        if with_logprobs and isinstance(self._builder, MessageBuilder):
            self._builder.logprobs.extend(self._logprobs(result.reports))
        for i, call in enumerate(result.calls):
            self.delta(0, CallStart(i, call.id, call.name, custom=call.custom))
            self.delta(0, CallArguments(i, call.arguments))
        self._finish(result.reason or "", usage)
        body = encode_json(self._answer)
        self._keep(self._answer, body)
        return body

    # Items.

    def _item(self, kind: type[MessageBuilder] | type[ReasoningBuilder]) -> bytes:
        """The events until an item of this kind is open; none where one is."""
        return b"" if isinstance(self._builder, kind) else self._close("completed") + self._open(kind())

    def _open(self, builder: ItemBuilder) -> bytes:
        index = len(self._answer.output)
        self._builder, self._delta = builder, self._events.delta_maker(builder, index)
        make = self._events.make
        added = make("response.output_item.added", output_index=index, item=builder.item("in_progress"))
        where = {"item_id": builder.id, "output_index": index}
        return added + b"".join(make(kind, **where, **fields) for kind, fields in builder.opening())

    def _piece(self, text: str) -> bytes:
        assert self._builder is not None
        assert self._delta is not None
        self._builder.pieces.append(text)
        return self._delta(text)

    def _close(self, status: str) -> bytes:
        builder, self._builder = self._builder, None
        if builder is None:
            return b""
        item: OutputItem = builder.item("completed" if status == "completed" else "incomplete")
        index = len(self._answer.output)
        self._answer.output.append(item)
        make = self._events.make
        where = {"item_id": builder.id, "output_index": index}
        done = b"".join(make(kind, **where, **fields) for kind, fields in builder.closing())
        return done + make("response.output_item.done", output_index=index, item=item)

    def _finish(self, reason: str, usage: Usage) -> bytes:
        answer = self._answer
        answer.status = "incomplete" if reason == "length" else "completed"
        opened = self._content("") if self._builder is None and not answer.output else b""
        closed = self._close(answer.status)
        if reason == "length":
            answer.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        else:
            answer.completed_at = int(time.time())
        answer.usage = _usage(usage)
        return opened + closed

    def _logprobs(self, reports: list[TokenReport]) -> list[ResponsesLogprob]:
        return [
            self._logprob(report.token, report.logprob or 0.0, [self._logprob(*top) for top in report.top])
            for report in reports
        ]

    def _logprob(
        self, token: int, logprob: float, top: list[ResponsesLogprob] | None = None
    ) -> ResponsesLogprob:
        piece = self._tokenizer.token_bytes(token)
        text = piece.decode("utf-8", "replace")
        return ResponsesLogprob(token=text, logprob=logprob, bytes=list(piece), top_logprobs=top)


def _usage(usage: Usage) -> ResponseUsage:
    reasoning_tokens = usage.completion_tokens_details.reasoning_tokens
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.prompt_tokens_details.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning_tokens),
        total_tokens=usage.total_tokens,
    )
