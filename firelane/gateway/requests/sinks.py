"""Sinks of a choice's text: server-sent events, or one answer at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from firelane.gateway.http.exchange import EVENT_STREAM, NDJSON, Exchange
from firelane.gateway.requests.formats import BestOf, ChoiceResult, LiveUsage, ResponseEncoder, TokenReport
from firelane.text.deltas import CallStart, Content, Delta, Reasoning, ToolCall
from firelane.wire.frames import PagesAt


@dataclass(frozen=True, slots=True)
class StreamMedia:
    """The encoding of a stream. waiting: bytes that tell proxies and clients that it lives, and nothing
    else; b"" where there is no such thing.
    """

    content_type: bytes
    waiting: bytes


EVENTS = StreamMedia(EVENT_STREAM, b": waiting\n\n")
LINES = StreamMedia(NDJSON + b"\r\ncache-control: no-cache\r\nx-accel-buffering: no", b"")


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Options of the answer that the client chose. hide_output: only the echoed prompt is wanted (max_tokens
    0). keep_stop: a stop string is part of the answer. visible_special_ids: special tokens that are shown by
    their names, None: all of them. token_ids, prompt_logprobs: the answer holds them. best_of: None where
    every answer is given out. hide_logprobs: they are wanted to choose, not to be shown. live_usage: of
    chunks that say the usage so far. prefix: text that an answer begins with, before its first token's.
    media: of a stream.
    """

    stream: bool = False
    logprobs: bool = False
    echo: bool = False
    hide_output: bool = False
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    keep_stop: bool = False
    visible_special_ids: frozenset[int] | None = frozenset()
    token_ids: bool = False
    prompt_logprobs: bool = False
    best_of: BestOf | None = None
    hide_logprobs: bool = False
    live_usage: LiveUsage | None = None
    prefix: str = ""
    media: StreamMedia = EVENTS


@dataclass(frozen=True, slots=True)
class PieceTokens:
    """Token ids of a piece of the answer, and those of the prompt before the first of them."""

    ids: list[int]
    prompt_ids: list[int] | None = None


class EventSink:
    """Writes one event, or line, per piece of text that its choice produces, in order."""

    __slots__ = ("_exchange", "_format", "_index", "_media", "_offset", "_token_text", "_write")

    def __init__(
        self,
        index: int,
        exchange: Exchange,
        format: ResponseEncoder,
        logprob_text: Callable[[int], str] | None,
        media: StreamMedia = EVENTS,
    ) -> None:
        self._index = index
        self._exchange = exchange
        self._format = format
        self._write = format.content_chunk(index)
        self._token_text = logprob_text
        self._media = media
        self._offset = 0

    def begin(self) -> None:
        if not self._exchange.started:
            self._exchange.start_stream(self._media.content_type)
        opening = self._format.opening(self._index)
        if opening:
            self._exchange.send(opening)

    def text(self, text: str) -> None:
        """Content."""
        self._exchange.send(self._write(text))

    def waiting(self) -> None:
        """Nothing comes for a while."""
        if self._exchange.started and self._media.waiting:
            self._exchange.send(self._media.waiting)

    def deltas(self, deltas: list[Delta]) -> None:
        """Content and other pieces, where the text is split: one write for all of them."""
        write, delta_event, index = self._write, self._format.delta, self._index
        events = b"".join(
            write(delta.text) if isinstance(delta, Content) else delta_event(index, delta) for delta in deltas
        )
        if events:
            self._exchange.send(events)

    def reported(
        self,
        text: str,
        reports: list[TokenReport],
        reason: str | None,
        tokens: PieceTokens | None = None,
        *,
        stop: str | None = None,
    ) -> None:
        """Text with its logprobs or its tokens, or the end (`reason` is set). stop: the stop string that has
        ended it.
        """
        offset = None if self._token_text is None else self._offset
        part = ChoiceResult(self._index, text, reports, reason, stop=stop)
        if tokens is not None:
            part.token_ids, part.prompt_ids = tokens.ids, tokens.prompt_ids
        event = self._format.event(part, offset)
        if event:
            self._exchange.send(event)
        if self._token_text is not None:
            self._offset += sum(len(self._token_text(report.token)) for report in reports)

    def ended(self, prompt_reports: list[TokenReport] | None, pages: PagesAt | None) -> None:
        """Events say nothing of a prompt."""


class ResultSink:
    """Gathers a choice for an answer in one piece."""

    __slots__ = ("_parts", "_result")

    def __init__(self, result: ChoiceResult) -> None:
        self._result = result
        self._parts: list[str] = []

    def begin(self) -> None:
        pass

    def text(self, text: str) -> None:
        self._parts.append(text)

    def waiting(self) -> None:
        pass

    def deltas(self, deltas: list[Delta]) -> None:
        result = self._result
        for delta in deltas:
            if isinstance(delta, Content):
                self._parts.append(delta.text)
            elif isinstance(delta, Reasoning):
                result.reasoning += delta.text
            elif isinstance(delta, CallStart):
                result.calls.append(ToolCall(delta.id, delta.name))
            else:
                result.calls[delta.index].arguments += delta.text

    def reported(
        self,
        text: str,
        reports: list[TokenReport],
        reason: str | None,
        tokens: PieceTokens | None = None,
        *,
        stop: str | None = None,
    ) -> None:
        self._parts.append(text)
        self._result.reports.extend(reports)
        if tokens is not None:
            self._result.token_ids = [*(self._result.token_ids or ()), *tokens.ids]
            self._result.prompt_ids = self._result.prompt_ids or tokens.prompt_ids
        if reason is not None:
            self._result.reason, self._result.stop = reason, stop
            self._result.text = "".join(self._parts)

    def ended(self, prompt_reports: list[TokenReport] | None, pages: PagesAt | None) -> None:
        """Nothing more comes. What the client wants to know of the prompt: its reports, the place of its
        pages.
        """
        self._result.prompt_reports, self._result.pages = prompt_reports, pages


ResponseSink = EventSink | ResultSink
