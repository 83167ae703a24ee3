"""Response format of Workers AI's native API, errors included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from firelane.api.errors import ErrorBody, ErrorEnvelope
from firelane.api.usage import Usage
from firelane.gateway.apis.workers_ai import types as api
from firelane.gateway.apis.workers_ai.types import RunAnswer, RunCall, RunResult, RunUsage
from firelane.gateway.requests.formats import DONE, ChoiceResult, each, encode_json
from firelane.text.deltas import CallStart, Content, Delta, Reasoning, ToolCall

PADDING = b"abcdefghijklmnopqrstuvwxyz0123456789"
PADDED_BYTES = 32
_ENVELOPES: msgspec.json.Decoder[ErrorEnvelope] = msgspec.json.Decoder(ErrorEnvelope)
_BY_CODE = {
    "model_not_found": (400, api.NO_SUCH_MODEL),
    "queue_full": (429, api.OUT_OF_CAPACITY),
}
_BY_STATUS = {
    401: api.AUTHENTICATION_ERROR,
    403: api.NOT_ALLOWED,
    405: api.LORA_UNSUPPORTED,
    429: api.OUT_OF_QUOTA,
    500: api.SERVER_ERROR,
    503: api.SERVER_ERROR,
}


class WorkersEncoder:
    """as_json: the answer's text is JSON, and an answer in one piece holds its value. Calls of a stream come
    whole, at its end."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._calls: list[ToolCall] = []

    def opening(self, index: int) -> bytes:  # noqa: ARG002
        return b""

    def content_chunks(self, index: int) -> Callable[[Sequence[str]], bytes]:  # noqa: ARG002
        return each(_content_chunk)

    def event(self, part: ChoiceResult, offset: int | None) -> bytes:  # noqa: ARG002
        return _content_chunk(part.text) if part.text else b""

    def delta(self, index: int, delta: Delta) -> bytes:  # noqa: ARG002
        if isinstance(delta, Content):
            return _content_chunk(delta.text)
        if isinstance(delta, Reasoning):
            return _event({"response": "", "reasoning_content": delta.text})
        if isinstance(delta, CallStart):
            self._calls.append(ToolCall(delta.id, delta.name))
        else:
            self._calls[delta.index].arguments += delta.text
        return b""

    def closing(self, usage: Usage) -> bytes:
        last: dict[str, Any] = {"response": "", "usage": _usage(usage)}
        if self._calls:
            last["tool_calls"] = [_call(call) for call in self._calls]
        return _event(last) + DONE

    def failure(self, body: bytes) -> bytes:
        return b"data: %b\n\n" % failure(503, body)[1]

    def response(self, results: list[ChoiceResult], usage: Usage, with_logprobs: bool) -> bytes:  # noqa: ARG002
        result = results[0]
        made = RunResult(
            response=None if result.calls and not result.text else self._response(result.text),
            usage=_usage(usage),
            tool_calls=[_call(call) for call in result.calls],
            reasoning_content=result.reasoning or None,
        )
        return encode_json(RunAnswer(result=made))

    def _response(self, text: str) -> Any:
        """The text of an answer that was cut off at its limit is no JSON."""
        return _value(text) if self._as_json else text


def _content_chunk(text: str) -> bytes:
    """`p` makes the length of an event tell less about its text to who sees only encrypted bytes."""
    said = encode_json(text)
    return b'data: {"response":%b,"p":"%b"}\n\n' % (said, PADDING[: -len(said) % PADDED_BYTES])


def _event(fields: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % encode_json(fields)


def _usage(usage: Usage) -> RunUsage:
    return RunUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
    )


def _call(call: ToolCall) -> RunCall:
    return RunCall(
        name=call.name,
        arguments=_value(call.arguments),
        id=call.id,
        function={"name": call.name, "arguments": call.arguments},
    )


def _value(text: str) -> Any:
    """The JSON value of a text; the text where it is none."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return msgspec.Raw(text.encode())


def failure(status: int, body: bytes) -> tuple[int, bytes]:
    """Status and body of Workers AI's answer; body: an ErrorEnvelope."""
    error = _ENVELOPES.decode(body).error
    status, code = _BY_CODE.get(str(error.code), (status, _BY_STATUS.get(status, api.INVALID_INPUT)))
    return status, encode_json(api.RunFailure(errors=[_body(error, code)]))


def _body(error: ErrorBody, code: int) -> api.RunErrorBody:
    return api.RunErrorBody(code=code, message=f"AiError: {error.message}")
