"""The gateway's side of the frames to one engine process: one connection at a time, made again after a
restart.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import socket
import time
from collections.abc import Callable, Iterator
from typing import Protocol, cast

from firelane.errors import EngineDeadError, FirelaneError, RequestError
from firelane.wire.codec import FrameReader, WireError, encode
from firelane.wire.frames import (
    Abort,
    EngineStats,
    Failed,
    FinishReason,
    FromEngine,
    NewRequest,
    Progress,
    Ready,
    Rejected,
    StepFrame,
    Submit,
    TokenLogprobs,
)

log = logging.getLogger(__name__)
SUBMIT_BYTES = 4 << 20
"""Bytes of prompts and grammars in one Submit frame: far below what an engine takes, however many requests
come at once.
"""


class Sink(Protocol):
    """Receives what one engine request produces. Calls come from the event loop, in this order within a
    frame: on_started, on_logprobs, on_embedding, ending, on_token, on_end. Nothing follows on_end or
    on_failed.
    """

    def on_started(self, cached_tokens: int, planned_s: float) -> None:
        """planned_s: when the engine took it out of its queue, by the monotonic clock."""
        ...

    def on_logprobs(self, entry: TokenLogprobs) -> None: ...
    def on_embedding(self, values: bytes) -> None:
        """values: as in wire.Embedding."""
        ...

    def ending(self, reason: FinishReason) -> None: ...
    def on_token(self, token: int, now_s: float) -> None: ...
    def on_end(self) -> None: ...
    def on_failed(self, error: FirelaneError) -> None: ...


class LinkState(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    DEAD = "dead"


class LinkEvents(Protocol):
    """What the owner of a link wants to know."""

    def on_ready(self, ready: Ready) -> None: ...
    def on_frame(self, frame: StepFrame, now_s: float) -> None:
        """After all sinks have seen the frame."""
        ...


class EngineLink:
    """State of one engine as the gateway sees it, and the requests in flight there.

    `on_down(reason)` is called once per connection that ends; the supervisor then starts a new engine and
    calls `attach` with its socket. Ids stay unique over restarts.
    """

    def __init__(self, on_down: Callable[[str], None] | None = None) -> None:
        self.state = LinkState.STARTING
        self.reason = "the engine has not been started yet"
        self.progress: Progress | None = None
        self.ready: Ready | None = None
        self.stats = EngineStats()
        self.events: LinkEvents | None = None
        self.on_down = on_down
        self.on_progress: Callable[[Progress], None] | None = None
        self.on_ready: Callable[[Ready], None] | None = None
        self.failed: Failed | None = None
        self._sinks: dict[int, Sink] = {}
        self._next_id = 1
        self._new: list[NewRequest] = []
        self._aborts: list[int] = []
        self._flush_scheduled = False
        self._connection: _Connection | None = None

    @property
    def in_flight(self) -> int:
        return len(self._sinks)

    async def attach(self, sock: socket.socket) -> None:
        """Take over a connected stream socket to an engine that is loading. Owns and closes the socket.

        What is still in flight on an older connection fails.
        """
        if self._connection is not None:
            self._detach()
            self.lose("another engine takes its place")
        self.state, self.reason = LinkState.STARTING, "the engine is starting"
        self.progress = self.ready = self.failed = None
        self.stats = EngineStats()
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        make = loop.create_unix_connection if sock.family == socket.AF_UNIX else loop.create_connection
        _, connection = await make(lambda: _Connection(self), sock=sock)  # pyright: ignore[reportCallIssue]
        self._connection = connection

    def next_id(self) -> int:
        """A request id that this link has not used before."""
        self._next_id += 1
        return self._next_id - 1

    def submit(self, request: NewRequest, sink: Sink) -> None:
        """Queue a request; those of one event-loop turn travel together. Raises EngineDeadError unless
        ready.
        """
        if self.state is not LinkState.READY:
            raise EngineDeadError(f"the engine does not serve: {self.reason}")
        self._sinks[request.id] = sink
        self._new.append(request)
        self._schedule_flush()

    def abort(self, request_id: int) -> None:
        """Stop a request and forget its sink. Unknown ids are ignored."""
        if self._sinks.pop(request_id, None) is not None:
            self._aborts.append(request_id)
            self._schedule_flush()

    def close(self) -> None:
        """Drop the connection; requests in flight fail. `on_down` is not called."""
        self.on_down = None
        self._detach()
        self.lose("the gateway is closing")

    def _detach(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        new, self._new = self._new, []
        aborts, self._aborts = self._aborts, []
        if self._connection is None:
            return
        for requests in _frames(new):
            self._connection.write(encode(Submit(requests)))
        if aborts:
            self._connection.write(encode(Abort(aborts)))

    def receive(self, frame: FromEngine) -> None:
        """Act on one frame from the engine."""
        if isinstance(frame, StepFrame):
            self._on_step(frame)
        elif isinstance(frame, Progress):
            self.progress = frame
            if self.on_progress is not None:
                self.on_progress(frame)
        elif isinstance(frame, Ready):
            self._on_ready(frame)
        elif isinstance(frame, Rejected):
            sink = self._sinks.pop(frame.id, None)
            if sink is not None:
                _fail(sink, RequestError(frame.message, code="rejected_by_engine"))
        else:
            self.failed, self.reason = frame, frame.message

    def _on_ready(self, ready: Ready) -> None:
        self.ready, self.state, self.reason = ready, LinkState.READY, ""
        if self.events is not None:
            self.events.on_ready(ready)
        if self.on_ready is not None:
            self.on_ready(ready)

    def _on_step(self, frame: StepFrame) -> None:
        now_s = time.monotonic()  # the loop's own clock has stood still since its turn began
        sinks = self._sinks
        self.stats = frame.stats
        if frame.started or frame.logprobs or frame.finished:
            self._before_tokens(frame, now_s)
        for request_id, token in zip(frame.ids, frame.tokens, strict=True):
            sink = sinks.get(request_id)
            if sink is None:
                continue
            try:
                sink.on_token(token, now_s)
            except Exception:
                self._drop(request_id)
        for finished in frame.finished:
            sink = sinks.pop(finished.id, None)
            if sink is not None:
                _end(sink)
        if self.events is not None:
            self.events.on_frame(frame, now_s)

    def _before_tokens(self, frame: StepFrame, now_s: float) -> None:
        for started in frame.started:
            at_s = now_s - started.age_s
            self._tell(started.id, lambda sink, n=started, at_s=at_s: sink.on_started(n.cached_tokens, at_s))
        for entry in frame.logprobs:
            self._tell(entry.id, lambda sink, news=entry: sink.on_logprobs(news))
        for embedding in frame.embeddings:
            self._tell(embedding.id, lambda sink, news=embedding: sink.on_embedding(news.values))
        for finished in frame.finished:
            self._tell(finished.id, lambda sink, news=finished: sink.ending(news.reason))

    def _tell(self, request_id: int, news: Callable[[Sink], None]) -> None:
        sink = self._sinks.get(request_id)
        if sink is not None:
            try:
                news(sink)
            except Exception:
                self._drop(request_id)

    def _drop(self, request_id: int) -> None:
        """A defect in one stream must not end the others."""
        log.exception("request_failed id=%d", request_id)
        sink = self._sinks.get(request_id)
        self.abort(request_id)
        if sink is not None:
            _fail(sink, FirelaneError("internal error in the token stream"))

    def lose(self, reason: str) -> None:
        """The connection is gone: fail all that is in flight."""
        self._connection = None
        self.state = LinkState.DEAD
        self.reason = self.failed.message if self.failed else reason
        self._new.clear()
        self._aborts.clear()
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            _fail(sink, EngineDeadError(f"the engine ended while the request was in flight: {self.reason}"))
        if self.on_down is not None:
            self.on_down(self.reason)


def _frames(requests: list[NewRequest]) -> Iterator[list[NewRequest]]:
    """The requests in order, cut where their prompts and grammars would be too much for one frame."""
    begin, size = 0, 0
    for index, request in enumerate(requests):
        own = _size(request)
        if index > begin and size + own > SUBMIT_BYTES:
            yield requests[begin:index]
            begin, size = index, 0
        size += own
    if begin < len(requests):
        yield requests[begin:]


def _size(request: NewRequest) -> int:
    """Bytes of what has no bound of its own. Of one character UTF-8 makes four bytes at most."""
    return len(request.prompt) + (0 if request.grammar is None else 4 * len(request.grammar.text))


def _end(sink: Sink) -> None:
    try:
        sink.on_end()
    except Exception:
        log.exception("request_end_failed")
        _fail(sink, FirelaneError("internal error at the end of the request"))


def _fail(sink: Sink, error: FirelaneError) -> None:
    try:
        sink.on_failed(error)
    except Exception:
        log.exception("request_failure_not_reported")


class _Connection(asyncio.Protocol):
    """Bytes of one engine connection. Reports to its link only while it is the link's current one."""

    def __init__(self, link: EngineLink) -> None:
        self._link: EngineLink | None = link
        self._reader: FrameReader[FromEngine] = FrameReader(FromEngine)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._link is None:
            return
        try:
            frames = self._reader.feed(data)
        except WireError as error:
            self._give_up(str(error))
            return
        for frame in frames:
            self._receive(frame)

    def _receive(self, frame: FromEngine) -> None:
        if self._link is None:  # the frame before it ended the connection
            return
        try:
            self._link.receive(frame)
        except Exception:  # a defect in handling one frame must not cost the engine's other requests
            log.exception("frame_failed kind=%s", type(frame).__name__)

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up(f"connection closed{f' ({exc})' if exc else ''}")

    def _give_up(self, reason: str) -> None:
        link, self._link = self._link, None
        if self._transport is not None:
            self._transport.close()
        if link is not None:
            link.lose(reason)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        self._link = None
        if self._transport is not None:
            self._transport.close()
