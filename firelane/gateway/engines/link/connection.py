"""Bytes of one engine connection."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Protocol, cast

from firelane.errors import FrameError
from firelane.gateway.engines.link.renumbering import SAME_IDS, Ids
from firelane.link.framing import FrameReader, encode
from firelane.wire.frames import FromEngine, ToEngine

log = logging.getLogger(__name__)


class Receiver(Protocol):
    def receive(self, frame: FromEngine) -> None: ...
    def lose(self, reason: str, *, is_closed: bool = True) -> None:
        """The connection has ended by itself. is_closed: by the other end."""
        ...


class Connection(asyncio.Protocol):
    """Owns the socket. Reports to its receiver until one of them closes it. frames: how many have come."""

    def __init__(self, receiver: Receiver, ids: Ids = SAME_IDS) -> None:
        """ids: of requests, as they are on the way."""
        self.frames = 0
        self._ids = ids
        self._receiver: Receiver | None = receiver
        self._reader: FrameReader[FromEngine] = FrameReader(FromEngine)
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, sock: socket.socket, receiver: Receiver) -> Connection:
        """Takes over a connected stream socket."""
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        make = loop.create_unix_connection if sock.family == socket.AF_UNIX else loop.create_connection
        _, connection = await make(lambda: cls(receiver), sock=sock)  # pyright: ignore[reportCallIssue]
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
        if self._receiver is None:
            return
        try:
            frames = self._reader.feed(data)
        except FrameError as error:
            self._give_up(str(error))
            return
        for frame in frames:
            self._receive(frame)

    def _receive(self, frame: FromEngine) -> None:
        if self._receiver is None:  # the frame before it ended the connection
            return
        self.frames += 1
        try:
            self._receiver.receive(self._ids.received(frame))
        except Exception:  # a defect in handling one frame must not cost the engine's other requests
            log.exception("frame_failed kind=%s", type(frame).__name__)

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up(f"connection closed{f' ({exc})' if exc else ''}", is_closed=exc is None)

    def _give_up(self, reason: str, *, is_closed: bool = True) -> None:
        receiver, self._receiver = self._receiver, None
        if self._transport is not None:
            self._transport.close()
        if receiver is not None:
            receiver.lose(reason, is_closed=is_closed)

    def send(self, frame: ToEngine) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(self._ids.sent(frame)))

    def close(self) -> None:
        self._receiver = None
        if self._transport is not None:
            self._transport.close()
