"""`chat.completion` and `chat.completion.chunk` objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET

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
from firelane.text.deltas import CallStart, Content, Delta, Reasoning
from firelane.text.tokens.tokenizer import Tokenizer


class ChatEncoder:
    """The ResponseEncoder of /v1/chat/completions. legacy_calls: a call is a `function_call`."""

    def __init__(
        self, identity: ResponseIdentity, tokenizer: Tokenizer, *, legacy_calls: bool = False
    ) -> None:
        self._identity = identity
        self._legacy_calls = legacy_calls
        self._tokenizer = tokenizer
        self._frame = EventFrame(identity, "chat.completion.chunk")

    def opening(self, index: int) -> bytes:
        return self._event(index, b'{"role":"assistant","content":""}')

    def content_chunk(self, index: int) -> Callable[[str], bytes]:
        before = b'{"index":%d,"delta":{"content":' % index
        return self._frame.content_chunk(before, b'},"logprobs":null,"finish_reason":null}')

    def event(self, part: ChoiceResult, offset: int | None) -> bytes:
        delta = b'{"content":%b}' % encode_json(part.text) if part.text or part.reason is None else b"{}"
        logprobs = b"null" if offset is None else encode_json(self._logprobs(part.reports))
        more = b"" if part.token_ids is None else b',"token_ids":%b' % encode_json(part.token_ids)
        if part.prompt_ids is not None:
            more += b',"prompt_token_ids":%b' % encode_json(part.prompt_ids)
        return self._event(part.index, delta, logprobs, encode_json(self._reason(part)), more)

    def delta(self, index: int, delta: Delta) -> bytes:
        return self._event(index, encode_json(self._delta_object(delta)))

    def _delta_object(self, delta: Delta) -> dict[str, Any]:
        if isinstance(delta, Content | Reasoning) or not self._legacy_calls:
            return delta_object(delta)
        name = {"name": delta.name} if isinstance(delta, CallStart) else {}
        arguments = "" if isinstance(delta, CallStart) else delta.text
        return {"function_call": {**name, "arguments": arguments}}

    def _reason(self, result: ChoiceResult) -> str | None:
        legacy = self._legacy_calls and result.reason == "tool_calls"
        return "function_call" if legacy else result.reason

    def _event(
        self, index: int, delta: bytes, logprobs: bytes = b"null", reason: bytes = b"null", more: bytes = b""
    ) -> bytes:
        head, tail = self._frame.head, self._frame.tail
        form = b'%b{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b%b}%b'
        return form % (head, index, delta, logprobs, reason, more, tail)

    def closing(self, usage: Usage) -> bytes:
        return self._frame.closing(usage)

    def failure(self, body: bytes) -> bytes:
        return error_event(body)

    def response(self, results: list[ChoiceResult], usage: Usage, with_logprobs: bool) -> bytes:
        who, first = self._identity, results[0]
        return encode_json(
            ChatResponse(
                id=who.id,
                created=who.created,
                model=who.model,
                system_fingerprint=who.fingerprint,
                service_tier=who.service_tier or UNSET,
                kv_transfer_params=transfer_params(results),
                choices=[self._choice(result, with_logprobs) for result in results],
                usage=usage,
                prompt_logprobs=prompt_logprobs(first.prompt_reports, self._tokenizer) or UNSET,
                prompt_token_ids=first.prompt_ids or UNSET,
            )
        )

    def _choice(self, result: ChoiceResult, with_logprobs: bool) -> ChatChoice:
        return ChatChoice(
            index=result.index,
            message=_message(result, legacy=self._legacy_calls),
            logprobs=self._logprobs(result.reports) if with_logprobs else None,
            finish_reason=self._reason(result),
            token_ids=result.token_ids,
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
        name = f"token_id:{entry[0]}" if self._identity.tokens_by_id else piece.decode("utf-8", "replace")
        return name, entry[1], list(piece)


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


def _message(result: ChoiceResult, *, legacy: bool) -> ChatMessage:
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
        tool_calls=[] if legacy else calls,
        function_call=calls[0].function if legacy and calls else None,
    )
