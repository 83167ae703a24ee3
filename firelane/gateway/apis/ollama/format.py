"""Response format of /api/chat and /api/generate: one JSON object, or one a line."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from firelane.api.usage import Usage
from firelane.gateway.apis.ollama.answer import (
    OllamaAnswerCall,
    OllamaAnswerMessage,
    OllamaCalledFunction,
    OllamaChatAnswer,
    OllamaGenerateAnswer,
    OllamaLogprob,
    OllamaPiece,
    failure,
)
from firelane.gateway.requests.formats import ChoiceResult, LiveUsage, TokenReport, around, encode_json
from firelane.telemetry.traces import RequestTimes
from firelane.text.deltas import CallStart, Content, Delta, Reasoning, ToolCall
from firelane.text.tokens.tokenizer import Tokenizer


class OllamaEncoder:
    """The ResponseEncoder of one answer. live: knows its times. spoken: of /api/chat, a message; else of
    /api/generate, a text. Calls of a stream come whole, at its end.
    """

    def __init__(self, model: str, live: LiveUsage, tokenizer: Tokenizer, *, spoken: bool) -> None:
        self._model = model
        self._created = rfc3339(time.time())
        self._live = live
        self._tokenizer = tokenizer
        self._spoken = spoken
        self._calls: list[ToolCall] = []
        self._reason: str | None = None
        head = b'{"model":%b,"created_at":%b,"done":false,' % (encode_json(model), encode_json(self._created))
        if spoken:
            self._write = around(head + b'"message":{"role":"assistant","content":', b"}}\n")
        else:
            self._write = around(head + b'"response":', b"}\n")

    # Streams.

    def opening(self, index: int) -> bytes:  # noqa: ARG002
        return b""

    def content_chunks(self, index: int) -> Callable[[Sequence[str]], bytes]:  # noqa: ARG002
        return self._write

    def event(self, part: ChoiceResult, offset: int | None) -> bytes:
        self._reason = part.reason
        made = b""
        if offset is not None and (part.text or part.reports):
            made = self._line(self._piece(part.text, logprobs=self._logprobs(part.reports)))
        elif part.text:
            made = self._write([part.text])
        if part.reason is not None and self._calls:
            made += self._line(self._piece("", calls=self._calls))
        return made

    def delta(self, index: int, delta: Delta) -> bytes:  # noqa: ARG002
        if isinstance(delta, Content):
            return self._write([delta.text])
        if isinstance(delta, Reasoning):
            return self._line(self._piece("", thinking=delta.text))
        if isinstance(delta, CallStart):
            self._calls.append(ToolCall(delta.id, delta.name))
        else:
            self._calls[delta.index].arguments += delta.text
        return b""

    def closing(self, usage: Usage) -> bytes:
        return self._line(self._ended(self._piece(""), self._reason, usage))

    def failure(self, body: bytes) -> bytes:
        return failure(503, body)[1] + b"\n"

    # An answer in one piece.

    def response(self, results: list[ChoiceResult], usage: Usage, with_logprobs: bool) -> bytes:
        result = results[0]
        logprobs = self._logprobs(result.reports) if with_logprobs else UNSET
        piece = self._piece(
            result.text, thinking=result.reasoning or UNSET, calls=result.calls, logprobs=logprobs
        )
        return encode_json(self._ended(piece, result.reason, usage))

    # Parts.

    def _piece(
        self,
        text: str,
        *,
        thinking: str | UnsetType = UNSET,
        calls: list[ToolCall] | None = None,
        logprobs: list[OllamaLogprob] | UnsetType = UNSET,
    ) -> OllamaPiece:
        if not self._spoken:
            return OllamaGenerateAnswer(
                model=self._model,
                created_at=self._created,
                done=False,
                response=text,
                thinking=thinking,
                logprobs=logprobs,
            )
        made = [_call(i, call) for i, call in enumerate(calls or ())]
        message = OllamaAnswerMessage(content=text, thinking=thinking, tool_calls=made or UNSET)
        return OllamaChatAnswer(
            model=self._model, created_at=self._created, done=False, message=message, logprobs=logprobs
        )

    def _ended(self, piece: OllamaPiece, reason: str | None, usage: Usage) -> OllamaPiece:
        assert self._live.times is not None
        times = self._live.times()
        first_s = times.first_s or times.ended_s
        planned_s = max(times.planned_s, times.arrived_s)
        piece.done = True
        piece.done_reason = "length" if reason == "length" else "stop"
        piece.total_duration, piece.load_duration = durations(times)
        piece.prompt_eval_count = usage.prompt_tokens
        piece.prompt_eval_duration = nanoseconds(first_s - planned_s)
        piece.eval_count = usage.completion_tokens
        piece.eval_duration = max(1, nanoseconds(times.ended_s - first_s))  # clients divide by it
        return piece

    def _line(self, piece: OllamaPiece) -> bytes:
        return encode_json(piece) + b"\n"

    def _logprobs(self, reports: list[TokenReport]) -> list[OllamaLogprob]:
        return [self._logprob(report.token, report.logprob, report.top) for report in reports]

    def _logprob(
        self, token: int, logprob: float | None, top: list[tuple[int, float]] | None = None
    ) -> OllamaLogprob:
        assert logprob is not None
        piece = self._tokenizer.token_bytes(token)
        return OllamaLogprob(
            token=piece.decode("utf-8", "replace"),
            logprob=logprob,
            bytes=list(piece),
            top_logprobs=[self._logprob(*entry) for entry in top] if top else UNSET,
        )


def durations(times: RequestTimes) -> tuple[int, int]:
    """Nanoseconds of all of a request, and of its way to the engine."""
    planned_s = times.planned_s or times.ended_s
    return nanoseconds(times.total_s), nanoseconds(planned_s - times.arrived_s)


def nanoseconds(seconds: float) -> int:
    """The engine's clock may say that it began before the request came: 0 then."""
    return max(0, round(seconds * 1e9))


def rfc3339(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat().replace("+00:00", "Z")


def _call(index: int, call: ToolCall) -> OllamaAnswerCall:
    """Arguments that were cut off at the answer's limit are none."""
    try:
        value: Any = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError):
        value = {}
    arguments = value if isinstance(value, dict) else {}
    function = OllamaCalledFunction(index=index, name=call.name, arguments=arguments)
    return OllamaAnswerCall(id=call.id, function=function)
