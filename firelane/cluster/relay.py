"""A relay between a gateway's connection and the engine's socket: bytes as they come, neither side faster
than the other one takes them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast


class ConnectionRelay:
    """Two connected ends, which end together. on_end: called once, when the outer one is gone."""

    def __init__(self, outer: asyncio.Transport, on_end: Callable[[ConnectionRelay], None]) -> None:
        """outer: a connection that does not read."""
        self._outer, self._inner = _End(self._outer_ended), _End(self._inner_ended)
        self._outer.transport, self._on_end = outer, on_end
        self._outer.other, self._inner.other = self._inner, self._outer

    async def begin(self, inner: socket.socket, head: bytes) -> None:
        """Takes over the socket. head: what has come already. Raises OSError."""
        inner.setblocking(False)
        outer = self._outer.transport
        assert outer is not None
        outer.set_protocol(self._outer)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self._inner, sock=inner)
        except OSError:
            inner.close()
            outer.close()
            raise
        if outer.is_closing():
            self._inner.close()
            return
        self._inner.write(head)
        outer.resume_reading()

    def close(self) -> None:
        """Once what is on its way has been sent."""
        self._outer.close()
        self._inner.close()

    def _outer_ended(self) -> None:
        self._inner.close()
        self._on_end(self)

    def _inner_ended(self) -> None:
        self._outer.close()


class _End(asyncio.Protocol):
    def __init__(self, on_end: Callable[[], None]) -> None:
        self.other: _End | None = None
        self.transport: asyncio.Transport | None = None
        self._on_end = on_end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)

    def write(self, data: bytes) -> None:
        if data and self.transport is not None:
            self.transport.write(data)

    def pause_writing(self) -> None:
        """This side does not take what the other one sends."""
        other = self.other.transport if self.other is not None else None
        if other is not None and not other.is_closing():
            other.pause_reading()

    def resume_writing(self) -> None:
        other = self.other.transport if self.other is not None else None
        if other is not None and not other.is_closing():
            other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._on_end()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()
