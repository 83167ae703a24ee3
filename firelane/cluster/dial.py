"""A gateway's connection to the host of an engine, up to the end of the hello."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass
from typing import cast

from firelane.cluster.addresses import Place
from firelane.errors import FirelaneError, FrameError
from firelane.link.tcp import watch_peer
from firelane.wire.hello import Hello, Refusal, Welcome, encode_hello, take_hello

DIAL_S = 10.0
"""For the connection, TLS and the hello together."""
DEAD_S = 20
"""Until a host that acknowledges nothing counts as gone."""


class DialError(FirelaneError):
    """No connection; is_passing: maybe one soon."""

    def __init__(self, message: str, *, is_passing: bool = True) -> None:
        super().__init__(message)
        self.is_passing = is_passing


@dataclass(frozen=True)
class Dialed:
    """A connection after the hello, which does not read. number: of it; head: what has come of its frames;
    more may come in the same turn of the loop."""

    transport: asyncio.Transport
    number: int
    head: bytearray


async def dial(place: Place, hello: Hello, context: ssl.SSLContext | None) -> Dialed:
    """Raises DialError."""
    loop = asyncio.get_running_loop()
    client: _Client | None = None
    try:
        async with asyncio.timeout(DIAL_S):
            _, client = await loop.create_connection(
                lambda: _Client(hello),
                *place.address,
                ssl=context,
                server_hostname=place.name if context is not None else None,
            )
            return await client.dialed
    except TimeoutError as error:
        raise DialError(f"no answer for {DIAL_S:g} s") from error
    except (OSError, ssl.SSLError) as error:
        raise DialError(f"no connection: {error}") from error
    finally:
        if client is not None:
            client.release()


class _Client(asyncio.Protocol):
    def __init__(self, hello: Hello) -> None:
        self.dialed: asyncio.Future[Dialed] = asyncio.get_running_loop().create_future()
        self._hello, self._data = hello, bytearray()
        self._transport: asyncio.Transport | None = None

    def release(self) -> None:
        """Close what nobody has got."""
        got = self.dialed.done() and not self.dialed.cancelled() and self.dialed.exception() is None
        if not got and self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        watch_host(self._transport)
        self._transport.write(encode_hello(self._hello))

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._transport is None or self.dialed.done():
            return
        try:
            taken = take_hello(bytes(self._data))
        except FrameError as error:
            self._fail(DialError(str(error)))
            return
        if taken is None:
            return
        message, rest = taken
        if isinstance(message, Welcome):
            self._transport.pause_reading()
            del self._data[: len(self._data) - len(rest)]
            self.dialed.set_result(Dialed(self._transport, message.number, self._data))
        elif isinstance(message, Refusal):
            self._fail(DialError(f"refused: {message.reason}", is_passing=message.is_passing))
        else:
            self._fail(DialError("a gateway answers there, not an engine's host"))

    def connection_lost(self, exc: Exception | None) -> None:
        why = f" ({exc})" if exc else ""
        if self._is_secured:  # TLS 1.3 refuses a client's certificate behind the handshake
            why += ": it may not trust this gateway's certificate, or that has expired"
        self._fail(DialError(f"the host closed the connection before the hello's end{why}"))

    @property
    def _is_secured(self) -> bool:
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is not None

    def _fail(self, error: DialError) -> None:
        if not self.dialed.done():
            self.dialed.set_exception(error)


def watch_host(transport: asyncio.BaseTransport) -> None:
    """Have the system find out when the other host is gone."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        watch_peer(sock, DEAD_S)
