"""One engine connection: its bytes, and the ids of requests on it.

An engine on another host is reached anew after its network failed, and may be the same process still. The
requests that come back to it have ids then that it has never seen: each connection has a number of its own,
and its requests' ids begin with it (wire.numbers). So no token of before can be taken for one of now.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from typing import TypeVar, cast

from msgspec.structs import replace

from firelane.errors import FrameError
from firelane.link.framing import FrameReader, encode
from firelane.wire.frames import (
    Abort,
    Embedding,
    Finished,
    ForgetTenant,
    Forgotten,
    FromEngine,
    NewRequest,
    Rejected,
    Started,
    StepFrame,
    Submit,
    ToEngine,
    TokenLogprobs,
)
from firelane.wire.numbers import SHIFT

EntryT = TypeVar("EntryT", Started, Finished, TokenLogprobs, Embedding, NewRequest)


class SameIds:
    """Ids that are the same on both sides."""

    def sent(self, frame: ToEngine) -> ToEngine:
        return frame

    def received(self, frame: FromEngine) -> FromEngine:
        return frame


class Renumbering:
    """Ids of gateway number 0, as those of another number."""

    def __init__(self, number: int) -> None:
        self._offset = number << SHIFT

    def sent(self, frame: ToEngine) -> ToEngine:
        """The frame as the engine is to see it."""
        if isinstance(frame, Submit):
            return Submit(_moved(frame.requests, self._offset))
        if isinstance(frame, Abort):
            return Abort([one + self._offset for one in frame.ids])
        if isinstance(frame, ForgetTenant):
            return replace(frame, id=frame.id + self._offset)
        return frame

    def received(self, frame: FromEngine) -> FromEngine:
        """The frame as the gateway is to see it."""
        offset = self._offset
        if isinstance(frame, Rejected | Forgotten):
            return replace(frame, id=frame.id - offset)
        if not isinstance(frame, StepFrame):
            return frame
        return replace(
            frame,
            ids=[one - offset for one in frame.ids],
            started=_moved(frame.started, -offset),
            finished=_moved(frame.finished, -offset),
            logprobs=_moved(frame.logprobs, -offset),
            embeddings=_moved(frame.embeddings, -offset),
        )


def _moved(entries: Iterable[EntryT], offset: int) -> list[EntryT]:
    return [replace(entry, id=entry.id + offset) for entry in entries]


log = logging.getLogger(__name__)
MOST_TOGETHER = 32
"""Steps whose tokens wait for each other where their frames have come together."""


ReceiveFrame = Callable[[FromEngine, bool], None]
"""Acts on a frame. The flag: the next one is here, and is of a step, too."""
Lose = Callable[[str, bool], None]
"""Hears the reason of an end that came by itself, and whether the other end closed the connection."""


class Connection(asyncio.Protocol):
    """Owns the socket. Reports to its receiver until one of them closes it. frames: how many have come."""

    def __init__(self, receive: ReceiveFrame, lose: Lose, ids: SameIds | Renumbering | None = None) -> None:
        """ids: of requests, as they are on the way."""
        self.frames = 0
        self._ids = ids or SameIds()
        self._receive_frame, self._lose = receive, lose
        self._is_over = False
        self._reader: FrameReader[FromEngine] = FrameReader(FromEngine)
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, sock: socket.socket, receive: ReceiveFrame, lose: Lose) -> Connection:
        """Takes over a connected stream socket."""
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        make = loop.create_unix_connection if sock.family == socket.AF_UNIX else loop.create_connection
        _, connection = await make(lambda: cls(receive, lose), sock=sock)  # pyright: ignore[reportCallIssue]
        return connection

    def take_over(self, transport: asyncio.Transport, head: bytes) -> None:
        """Take over a connection that does not read. head: what has come of its frames."""
        self._transport = transport
        transport.set_protocol(self)
        self.data_received(head)
        if transport.is_closing():  # its end may have been told to the protocol before
            self._give_up("connection closed")
        else:
            transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        try:
            frames = self._reader.feed(data)
        except FrameError as error:
            self._give_up(str(error))
            return
        for i, frame in enumerate(frames, 1):
            more = i < len(frames) and i % MOST_TOGETHER != 0 and isinstance(frames[i], StepFrame)
            self._receive(frame, more=more)

    def _receive(self, frame: FromEngine, *, more: bool) -> None:
        if self._is_over:  # the frame before it ended the connection
            return
        self.frames += 1
        try:
            self._receive_frame(self._ids.received(frame), more)
        except Exception:  # a defect in handling one frame must not cost the engine's other requests
            log.exception("frame_failed kind=%s", type(frame).__name__)

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up(f"connection closed{f' ({exc})' if exc else ''}", is_closed=exc is None)

    def _give_up(self, reason: str, *, is_closed: bool = True) -> None:
        was_over, self._is_over = self._is_over, True
        if self._transport is not None:
            self._transport.close()
        if not was_over:
            self._lose(reason, is_closed)

    def send(self, frame: ToEngine) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(self._ids.sent(frame)))

    def close(self) -> None:
        self._is_over = True
        if self._transport is not None:
            self._transport.close()
