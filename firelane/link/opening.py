"""A connection in an event loop up to the end of its greeting."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import msgspec

from firelane.errors import FrameError, PeerLostError
from firelane.link.framing import encode
from firelane.link.greeting import Greeting, take_greeting
from firelane.link.tcp import watch_peer

DEAD_S = 20
"""Until a host that acknowledges nothing counts as gone."""


class Opening(asyncio.Protocol):
    """Reads one greeting, and nothing behind it: whoever takes the connection over has it read on. head: what
    has come behind the greeting; more may come in the same turn of the loop."""

    def __init__(self) -> None:
        self.head = bytearray()
        self._transport: asyncio.Transport | None = None
        self._came: asyncio.Future[Greeting] = asyncio.get_running_loop().create_future()

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def send(self, message: msgspec.Struct) -> None:
        self.transport.write(encode(message))

    async def receive(self) -> Greeting:
        """Raises PeerLostError, FrameError."""
        return await self._came

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            watch_peer(sock, DEAD_S)

    def data_received(self, data: bytes) -> None:
        self.head += data
        if self._came.done():
            return
        try:
            taken = take_greeting(bytes(self.head))
        except FrameError as error:
            self._fail(error)
            return
        if taken is not None:
            self.transport.pause_reading()
            message, end = taken
            del self.head[:end]
            self._came.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:
        why = f" ({exc})" if exc else ""
        self._fail(PeerLostError(f"the other end closed the connection before the greeting's end{why}"))

    def _fail(self, error: PeerLostError) -> None:
        if not self._came.done():
            self._came.set_exception(error)
            self._came.exception()  # it is no mistake when nobody waits for it
