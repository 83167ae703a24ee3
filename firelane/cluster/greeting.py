"""The host's side of the hello, on one connection."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, cast

from firelane.cluster.dial import watch_host
from firelane.errors import FrameError
from firelane.wire.hello import Hello, HelloMessage, Refusal, encode_hello, take_hello

log = logging.getLogger(__name__)
HELLO_S = 10.0
"""For TLS, and for a gateway's hello."""


class Greeter(Protocol):
    def begin(self, greeting: Greeting) -> bool:
        """Whether there is room for one more connection."""
        ...

    def end(self, greeting: Greeting) -> None: ...
    def welcome(self, hello: Hello, transport: asyncio.Transport, head: bytes) -> Refusal | None:
        """Take over the connection, which does not read; else why not. head: what came behind the hello."""
        ...


class Greeting(asyncio.Protocol):
    """Reads one hello, within HELLO_S."""

    def __init__(self, greeter: Greeter) -> None:
        self._greeter = greeter
        self._data = b""
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._greeter.begin(self):
            self._transport.abort()
            return
        watch_host(transport)
        self._deadline = asyncio.get_running_loop().call_later(HELLO_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._data += data
        try:
            taken = take_hello(self._data)
        except FrameError as error:
            self._refuse(Refusal(str(error)))
            return
        if taken is not None:
            self._answer(*taken)

    def _answer(self, message: HelloMessage, head: bytes) -> None:
        assert self._transport is not None
        if not isinstance(message, Hello):
            self._refuse(Refusal("an engine's host answers here, to gateways alone"))
            return
        self._transport.pause_reading()
        refusal = self._greeter.welcome(message, self._transport, head)
        self._leave()
        if refusal is not None:
            self._refuse(refusal)

    def _refuse(self, refusal: Refusal) -> None:
        if self._transport is not None and not self._transport.is_closing():
            log.warning("gateway_refused address=%s reason=%r", peer_name(self._transport), refusal.reason)
            self._transport.write(encode_hello(refusal))
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._leave()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _leave(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._greeter.end(self)


def peer_name(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "?"
