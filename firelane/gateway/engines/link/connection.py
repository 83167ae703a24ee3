"""Bytes of one engine connection."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import cast

from firelane.errors import FrameError
from firelane.gateway.engines.link.renumbering import Renumbering, SameIds
from firelane.link.framing import FrameReader, encode
from firelane.wire.frames import FromEngine, ToEngine

log = logging.getLogger(__name__)
Receive = Callable[[FromEngine], None]
Lose = Callable[[str, bool], None]
"""Hears the reason of an end that came by itself, and whether the other end closed the connection."""


class Connection(asyncio.Protocol):
    """Owns the socket. Reports to its receiver until one of them closes it. frames: how many have come."""

    def __init__(self, receive: Receive, lose: Lose, ids: SameIds | Renumbering | None = None) -> None:
        """ids: of requests, as they are on the way."""
        self.frames = 0
        self._ids = ids or SameIds()
        self._receive_frame, self._lose = receive, lose
        self._is_over = False
        self._reader: FrameReader[FromEngine] = FrameReader(FromEngine)
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, sock: socket.socket, receive: Receive, lose: Lose) -> Connection:
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
        for frame in frames:
            self._receive(frame)

    def _receive(self, frame: FromEngine) -> None:
        if self._is_over:  # the frame before it ended the connection
            return
        self.frames += 1
        try:
            self._receive_frame(self._ids.received(frame))
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
