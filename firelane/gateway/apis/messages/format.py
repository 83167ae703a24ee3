"""Response format of /v1/messages: one message, or the events of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from firelane.api.usage import Usage
from firelane.gateway.apis.messages.answer import (
    AnswerBlock,
    MessageAnswer,
    MessagesUsage,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ThinkingTokensDetails,
    ToolUseBlock,
    failure,
)
from firelane.gateway.requests.formats import ChoiceResult, LiveUsage, ResponseIdentity, each, encode_json
from firelane.text.deltas import CallStart, Content, Delta, Reasoning

SIGNATURE = "unsigned"
"""The signature of reasoning: clients want one, and nothing here checks what they send back."""
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOPPED = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_CLOSE = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n'
_DELTA = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
)
_TEXT, _THINKING, _INPUT = (
    (b"text_delta", b"text"),
    (b"thinking_delta", b"thinking"),
    (b"input_json_delta", b"partial_json"),
)
Kind = tuple[bytes, bytes]


class MessagesEncoder:
    """The ResponseEncoder of one message. live: what is known of its usage at the start of a stream. capped:
    `max_tokens` was more than the context has room for.
    """

    def __init__(self, identity: ResponseIdentity, live: LiveUsage, request_id: str, *, capped: bool) -> None:
        self._identity = identity
        self._request_id = request_id
        self._live = live
        self._capped = capped
        self._kind: Kind | None = None
        self._head = b""
        self._next = 0
        self._end = ChoiceResult(0)

    # Streams.

    def opening(self, index: int) -> bytes:  # noqa: ARG002
        assert self._live.read is not None
        message = self._message([], None, None, self._live.read())
        return _event("message_start", message=message) + PING

    def content_chunks(self, index: int) -> Callable[[Sequence[str]], bytes]:  # noqa: ARG002
        return each(self._content)

    def _content(self, text: str) -> bytes:
        if self._kind is not _TEXT:
            return self._open(_TEXT, {"type": "text", "text": ""}) + self._piece(text)
        return b"%b%b}}\n\n" % (self._head, encode_json(text))

    def delta(self, index: int, delta: Delta) -> bytes:  # noqa: ARG002
        if isinstance(delta, Content):
            return self._content(delta.text)
        if isinstance(delta, CallStart):
            block = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
            return self._open(_INPUT, block)
        if isinstance(delta, Reasoning) and self._kind is not _THINKING:
            return self._open(_THINKING, {"type": "thinking", "thinking": "", "signature": ""}) + self._piece(
                delta.text
            )
        return self._piece(delta.text)

    def event(self, part: ChoiceResult, offset: int | None) -> bytes:  # noqa: ARG002
        self._end = part
        return self._content(part.text) if part.text else b""

    def closing(self, usage: Usage) -> bytes:
        reason, stop = self._stopped(self._end)
        opened = self._open(_TEXT, {"type": "text", "text": ""}) if not self._next else b""
        ended = _event(
            "message_delta",
            delta={"stop_reason": reason, "stop_sequence": stop},
            usage=_usage(usage),
        )
        return opened + self._close() + ended + _STOPPED

    def failure(self, body: bytes) -> bytes:
        return b"event: error\ndata: %b\n\n" % failure(self._request_id, 200, body)[1]

    # An answer in one piece.

    def response(self, results: list[ChoiceResult], usage: Usage, with_logprobs: bool) -> bytes:  # noqa: ARG002
        result = results[0]
        blocks: list[AnswerBlock] = []
        if result.reasoning:
            blocks.append(ThinkingBlock(thinking=result.reasoning, signature=SIGNATURE))
        if result.text or not (blocks or result.calls):
            blocks.append(TextBlock(text=result.text))
        blocks += [
            ToolUseBlock(id=call.id, name=call.name, input=_input(call.arguments)) for call in result.calls
        ]
        return encode_json(self._message(blocks, *self._stopped(result), usage))

    # Parts.

    def _message(
        self, blocks: list[AnswerBlock], reason: StopReason | None, stop: str | None, usage: Usage
    ) -> MessageAnswer:
        return MessageAnswer(
            id=self._identity.id,
            model=self._identity.model,
            content=blocks,
            stop_reason=reason,
            stop_sequence=stop,
            usage=_usage(usage),
        )

    def _stopped(self, result: ChoiceResult) -> tuple[StopReason, str | None]:
        if result.stop is not None:
            return "stop_sequence", result.stop
        if result.reason == "length":
            return ("model_context_window_exceeded" if self._capped else "max_tokens"), None
        return ("tool_use" if result.reason == "tool_calls" else "end_turn"), None

    def _open(self, kind: Kind, block: dict[str, Any]) -> bytes:
        closed, index = self._close(), self._next
        self._kind, self._head, self._next = kind, _DELTA % (index, *kind), index + 1
        return closed + _event("content_block_start", index=index, content_block=block)

    def _piece(self, text: str) -> bytes:
        return b"%b%b}}\n\n" % (self._head, encode_json(text)) if text else b""

    def _close(self) -> bytes:
        kind, self._kind = self._kind, None
        if kind is None:
            return b""
        signed = b""
        if kind is _THINKING:
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            signed = _event("content_block_delta", index=self._next - 1, delta=delta)
        return signed + _CLOSE % (self._next - 1)


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode_json({"type": kind, **fields}))


def _input(arguments: str) -> dict[str, Any]:
    """The input of a call, {} for one that was cut off at a limit."""
    try:
        value: Any = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _usage(usage: Usage) -> MessagesUsage:
    cached = usage.prompt_tokens_details.cached_tokens
    return MessagesUsage(
        input_tokens=usage.prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=usage.completion_tokens,
        output_tokens_details=ThinkingTokensDetails(
            thinking_tokens=usage.completion_tokens_details.reasoning_tokens
        ),
    )
