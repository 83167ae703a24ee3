"""The two shapes of an answer, completions and chat: whole, or as server-sent events.

Everything of an event that does not change from token to token is made once, as bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from firelane.api.chat_answer import (
    ChatChoice,
    ChatLogprob,
    ChatLogprobs,
    ChatMessage,
    ChatResponse,
    FunctionCall,
    MessageToolCall,
    TopLogprob,
)
from firelane.api.completions import CompletionChoice, CompletionLogprobs, CompletionResponse
from firelane.api.usage import Usage
from firelane.gateway.deltas import CallStart, Content, Delta, Reasoning, ToolCall
from firelane.gateway.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"
encode_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class TokenReport:
    """Log-probability of one token, None for the first of an echoed prompt; alternatives best first."""

    token: int
    logprob: float | None
    top: list[tuple[int, float]]


@dataclass(slots=True)
class ChoiceResult:
    """One choice of an answer in one piece, or what one event adds to it."""

    index: int
    text: str = ""
    reports: list[TokenReport] = field(default_factory=list[TokenReport])
    reason: str | None = None
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list[ToolCall])


@dataclass(frozen=True, slots=True)
class Identity:
    """What all chunks of one answer repeat. created: Unix time in seconds. usage_in_chunks: chunks say
    `usage: null` because the last one will hold it.
    """

    id: str
    created: int
    model: str
    usage_in_chunks: bool = False


class Form(Protocol):
    """How one kind of answer is written. `reports` is None when the client did not ask for logprobs;
    `offset` counts the characters of the choice before these reports.
    """

    def opening(self, index: int) -> bytes:
        """The event before a choice's first text, or b""."""
        ...

    def text_event(self, index: int) -> Callable[[str], bytes]:
        """Makes the events that hold nothing but text, of one choice."""
        ...

    def event(self, part: ChoiceResult, offset: int | None) -> bytes:
        """An event with reports (unless `offset` is None) or an end; b"" where it needs none."""
        ...

    def delta(self, index: int, delta: Delta) -> bytes:
        """An event that holds a piece which is not content; b"" where it comes later."""
        ...

    def closing(self, usage: Usage) -> bytes:
        """What ends a stream that went well."""
        ...

    def failure(self, body: bytes) -> bytes:
        """What ends a stream that failed; body: an error envelope."""
        ...

    def response(self, results: list[ChoiceResult], usage: Usage, with_logprobs: bool) -> bytes: ...


def around(head: bytes, tail: bytes) -> Callable[[str], bytes]:
    """What writes the JSON of a text between bytes that do not change."""
    return lambda text: b"%b%b%b" % (head, encode_json(text), tail)


def _envelope(identity: Identity, kind: str) -> tuple[bytes, bytes]:
    """The bytes of an event before and after its choices."""
    head = b'data: {"id":%b,"object":%b,"created":%d,"model":%b,"choices":[' % (
        encode_json(identity.id),
        encode_json(kind),
        identity.created,
        encode_json(identity.model),
    )
    return head, b'],"usage":null}\n\n' if identity.usage_in_chunks else b"]}\n\n"


def _closing(head: bytes, usage: Usage, identity: Identity) -> bytes:
    if not identity.usage_in_chunks:
        return DONE
    return b'%b],"usage":%b}\n\n%b' % (head, encode_json(usage), DONE)


def error_event(body: bytes) -> bytes:
    return b"data: %b\n\n" % body


class CompletionForm:
    """`text_completion` objects."""

    def __init__(self, identity: Identity, tokenizer: Tokenizer) -> None:
        self._identity = identity
        self._tokenizer = tokenizer
        self._head, self._tail = _envelope(identity, "text_completion")

    def opening(self, index: int) -> bytes:  # noqa: ARG002
        return b""

    def text_event(self, index: int) -> Callable[[str], bytes]:
        head = b'%b{"index":%d,"text":' % (self._head, index)
        return around(head, b',"logprobs":null,"finish_reason":null}' + self._tail)

    def event(self, part: ChoiceResult, offset: int | None) -> bytes:
        return self._head + encode_json(self._choice(part, offset)) + self._tail

    def delta(self, index: int, delta: Delta) -> bytes:
        raise AssertionError(f"completions split no text: {index}, {delta}")

    def closing(self, usage: Usage) -> bytes:
        return _closing(self._head, usage, self._identity)

    def failure(self, body: bytes) -> bytes:
        return error_event(body)

    def response(self, results: list[ChoiceResult], usage: Usage, with_logprobs: bool) -> bytes:
        choices = [self._choice(result, 0 if with_logprobs else None) for result in results]
        who = self._identity
        return encode_json(
            CompletionResponse(id=who.id, created=who.created, model=who.model, choices=choices, usage=usage)
        )

    def _choice(self, part: ChoiceResult, offset: int | None) -> CompletionChoice:
        logprobs = None if offset is None else self._logprobs(part.reports, offset)
        return CompletionChoice(
            index=part.index, text=part.text, logprobs=logprobs, finish_reason=part.reason
        )

    def _logprobs(self, reports: list[TokenReport], offset: int) -> CompletionLogprobs:
        text_of = self._tokenizer.token_text
        tokens = [text_of(report.token) for report in reports]
        offsets: list[int] = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
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


class ChatForm:
    """`chat.completion` and `chat.completion.chunk` objects."""

    def __init__(self, identity: Identity, tokenizer: Tokenizer) -> None:
        self._identity = identity
        self._tokenizer = tokenizer
        self._head, self._tail = _envelope(identity, "chat.completion.chunk")

    def opening(self, index: int) -> bytes:
        return (
            b'%b{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}%b'
            % (self._head, index, self._tail)
        )

    def text_event(self, index: int) -> Callable[[str], bytes]:
        head = b'%b{"index":%d,"delta":{"content":' % (self._head, index)
        return around(head, b'},"logprobs":null,"finish_reason":null}' + self._tail)

    def event(self, part: ChoiceResult, offset: int | None) -> bytes:
        logprobs = b"null" if offset is None else encode_json(self._logprobs(part.reports))
        delta = b'{"content":%b}' % encode_json(part.text) if part.text or part.reason is None else b"{}"
        return b'%b{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}%b' % (
            self._head,
            part.index,
            delta,
            logprobs,
            encode_json(part.reason),
            self._tail,
        )

    def delta(self, index: int, delta: Delta) -> bytes:
        return b'%b{"index":%d,"delta":%b,"logprobs":null,"finish_reason":null}%b' % (
            self._head,
            index,
            encode_json(delta_object(delta)),
            self._tail,
        )

    def closing(self, usage: Usage) -> bytes:
        return _closing(self._head, usage, self._identity)

    def failure(self, body: bytes) -> bytes:
        return error_event(body)

    def response(self, results: list[ChoiceResult], usage: Usage, with_logprobs: bool) -> bytes:
        choices = [
            ChatChoice(
                index=result.index,
                message=_message(result),
                logprobs=self._logprobs(result.reports) if with_logprobs else None,
                finish_reason=result.reason,
            )
            for result in results
        ]
        who = self._identity
        return encode_json(
            ChatResponse(id=who.id, created=who.created, model=who.model, choices=choices, usage=usage)
        )

    def _logprobs(self, reports: list[TokenReport]) -> ChatLogprobs:
        content: list[ChatLogprob] = []
        for report in reports:
            assert report.logprob is not None
            tops = [TopLogprob(token=t, logprob=lp, bytes=b) for t, lp, b in map(self._entry, report.top)]
            token, logprob, piece = self._entry((report.token, report.logprob))
            content.append(ChatLogprob(token=token, logprob=logprob, bytes=piece, top_logprobs=tops))
        return ChatLogprobs(content=content)

    def _entry(self, entry: tuple[int, float]) -> tuple[str, float, list[int]]:
        piece = self._tokenizer.token_bytes(entry[0])
        return piece.decode("utf-8", "replace"), entry[1], list(piece)


def delta_object(delta: Delta) -> dict[str, Any]:
    """The `delta` of a chat chunk."""
    if isinstance(delta, Content):
        return {"content": delta.text}
    if isinstance(delta, Reasoning):
        return {"reasoning_content": delta.text}
    if isinstance(delta, CallStart):
        function: dict[str, str] = {"name": delta.name, "arguments": ""}
        call: dict[str, Any] = {"index": delta.index, "id": delta.id, "type": "function"}
        return {"tool_calls": [call | {"function": function}]}
    return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}


def _message(result: ChoiceResult) -> ChatMessage:
    calls = [
        MessageToolCall(id=call.id, function=FunctionCall(name=call.name, arguments=call.arguments))
        for call in result.calls
    ]
    content = None if calls and not result.text else result.text
    return ChatMessage(
        role="assistant",
        refusal=None,
        content=content,
        reasoning_content=result.reasoning or None,
        tool_calls=calls,
    )
