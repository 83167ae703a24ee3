"""Sinks of a choice's text: server-sent events, or one answer at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from firelane.gateway.http.exchange import EVENT_STREAM, NDJSON, Exchange
from firelane.gateway.requests.formats import BestOf, ChoiceResult, LiveUsage, ResponseEncoder, TokenReport
from firelane.text.deltas import CallStart, Content, Delta, Reasoning, ToolCall, joined
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
    media: of a stream. time_limit_s: an answer that has a line ends so long after its first token; 0: it
    does not. on_answer: gets an answer that went well in one piece, also where it is a stream; None where
    nobody keeps it.
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
    time_limit_s: float = 0.0
    on_answer: Callable[[bytes], None] | None = None


@dataclass(frozen=True, slots=True)
class PieceTokens:
    """Token ids of a piece of the answer, and those of the prompt before the first of them."""

    ids: list[int]
    prompt_ids: list[int] | None = None


class MergedPieces:
    """Pieces of one step's tokens that become one event of each kind. reported: texts with logprobs or
    tokens, as one; None where there are none."""

    __slots__ = ("deltas", "reported")

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.reported: tuple[str, list[TokenReport], PieceTokens | None] | None = None

    def report(self, text: str, reports: list[TokenReport], tokens: PieceTokens | None) -> None:
        before = self.reported
        if before is not None:
            text, reports = before[0] + text, before[1] + reports
            if tokens is not None and before[2] is not None:
                tokens = PieceTokens(before[2].ids + tokens.ids, before[2].prompt_ids)
        self.reported = text, reports, tokens


class EventSink:
    """Makes one event, or line, per piece of text that its choice produces, in order; of pieces between
    `merge` and `flush`, one of each kind."""

    __slots__ = (
        *("_exchange", "_format", "_held", "_index", "_media", "_merged", "_offset", "_token_text", "_write"),
    )

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
        self._write = format.content_chunks(index)
        self._token_text = logprob_text
        self._media = media
        self._offset = 0
        self._held: list[bytes] | None = None
        self._merged: MergedPieces | None = None

    def begin(self) -> None:
        if not self._exchange.started:
            self._exchange.start_stream(self._media.content_type)
        opening = self._format.opening(self._index)
        if opening:
            self._send(opening)

    def hold(self) -> None:
        """Keep what comes until `release`, or the end: one write for all of it."""
        self._held = []

    def release(self) -> None:
        held, self._held = self._held, None
        if held:
            self._exchange.send(b"".join(held))

    def _send(self, events: bytes) -> None:
        if self._held is None:
            self._exchange.send(events)
        else:
            self._held.append(events)

    def merge(self) -> None:
        """Keep the pieces that come until `flush`."""
        self._merged = MergedPieces()

    def flush(self) -> None:
        merged, self._merged = self._merged, None
        if merged is None:
            return
        if merged.deltas:
            self.deltas(joined(merged.deltas))
        if merged.reported is not None:
            text, reports, tokens = merged.reported
            self.reported(text, reports, None, tokens)

    def texts(self, texts: list[str]) -> None:
        """Content: one write for all of it."""
        if self._merged is None:
            self._send(self._write(texts))
        else:
            self._merged.deltas += map(Content, texts)

    def waiting(self) -> None:
        """Nothing comes for a while."""
        if self._exchange.started and self._media.waiting:
            self._send(self._media.waiting)

    def deltas(self, deltas: list[Delta]) -> None:
        """Content and other pieces, where the text is split: one write for all of them."""
        if self._merged is not None:
            self._merged.deltas += deltas
            return
        write, delta_event, index = self._write, self._format.delta, self._index
        events = b"".join(
            write((delta.text,)) if isinstance(delta, Content) else delta_event(index, delta)
            for delta in deltas
        )
        if events:
            self._send(events)

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
        if self._merged is not None and reason is None:
            self._merged.report(text, reports, tokens)
            return
        offset = None if self._token_text is None else self._offset
        part = ChoiceResult(self._index, text, reports, reason, stop=stop)
        if tokens is not None:
            part.token_ids, part.prompt_ids = tokens.ids, tokens.prompt_ids
        event = self._format.event(part, offset)
        if event:
            self._send(event)
        if self._token_text is not None:
            self._offset += sum(len(self._token_text(report.token)) for report in reports)

    def ended(self, prompt_reports: list[TokenReport] | None, pages: PagesAt | None) -> None:
        """Events say nothing of a prompt."""
        del prompt_reports, pages
        self.release()


class ResultSink:
    """Gathers a choice for an answer in one piece."""

    __slots__ = ("_parts", "_result")

    def __init__(self, result: ChoiceResult) -> None:
        self._result = result
        self._parts: list[str] = []

    def begin(self) -> None:
        pass

    def hold(self) -> None:
        pass

    def release(self) -> None:
        pass

    def merge(self) -> None:
        """An answer in one piece keeps all of it."""

    def flush(self) -> None:
        pass

    def texts(self, texts: list[str]) -> None:
        self._parts += texts

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
                result.calls.append(ToolCall(delta.id, delta.name, custom=delta.custom))
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


class StoringSink:
    """The two sinks of a stream whose answer is kept, too."""

    __slots__ = ("_events", "_result")

    def __init__(self, events: EventSink, result: ResultSink) -> None:
        self._events, self._result = events, result

    def begin(self) -> None:
        self._events.begin()

    def hold(self) -> None:
        self._events.hold()

    def release(self) -> None:
        self._events.release()

    def merge(self) -> None:
        self._events.merge()

    def flush(self) -> None:
        self._events.flush()

    def texts(self, texts: list[str]) -> None:
        self._result.texts(texts)
        self._events.texts(texts)

    def waiting(self) -> None:
        self._events.waiting()

    def deltas(self, deltas: list[Delta]) -> None:
        self._result.deltas(deltas)
        self._events.deltas(deltas)

    def reported(
        self,
        text: str,
        reports: list[TokenReport],
        reason: str | None,
        tokens: PieceTokens | None = None,
        *,
        stop: str | None = None,
    ) -> None:
        self._result.reported(text, reports, reason, tokens, stop=stop)
        self._events.reported(text, reports, reason, tokens, stop=stop)

    def ended(self, prompt_reports: list[TokenReport] | None, pages: PagesAt | None) -> None:
        self._result.ended(prompt_reports, pages)
        self._events.ended(prompt_reports, pages)


ResponseSink = EventSink | ResultSink | StoringSink
