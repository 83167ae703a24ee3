"""Connections that are accepted in an event loop, up to the end of their greeting."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from firelane.errors import FrameError, PeerLostError
from firelane.link.greeting import Greeting, Hello, Refused
from firelane.link.opening import Opening
from firelane.link.tls import ContextSource

log = logging.getLogger(__name__)
GREETING_S = 10.0
"""For TLS and the greeting together."""
MOST_GREETINGS = 256
"""Connections that have not greeted yet, TLS handshakes included. Beyond them the oldest is hung up on, so
that whoever is silent keeps nobody out."""
PAUSE_S = 0.1
"""After the system gave no connection, for want of descriptors."""
NOT_HELLO = Refused("this end accepts connections, and opens none: the other end has to say hello")
Consider = Callable[[Hello, Opening], Refused | None]
"""Takes a connection over after its greeting, or says why not."""


class GreetingServer:
    """Owns the listening sockets, and each connection until it is taken over."""

    def __init__(self, sockets: Sequence[socket.socket], consider: Consider, context: ContextSource) -> None:
        self._sockets, self._consider, self._context = sockets, consider, context
        self._greetings: dict[asyncio.Task[None], socket.socket] = {}
        """In the order in which they came."""
        loop = asyncio.get_running_loop()
        self._accepting = [loop.create_task(self._accept(sock)) for sock in sockets]

    def stop(self) -> None:
        """Accept no more; idempotent."""
        for task in self._accepting:
            task.cancel()

    async def close(self) -> None:
        """Stop, and hang up on all that have not greeted."""
        self.stop()
        greetings = list(self._greetings)
        for greeting in greetings:
            self._hang_up(greeting)
        await asyncio.gather(*self._accepting, *greetings, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    sock, _ = await loop.sock_accept(listening)
                except OSError:
                    await asyncio.sleep(PAUSE_S)
                    continue
                if len(self._greetings) >= MOST_GREETINGS:
                    self._hang_up(next(iter(self._greetings)))
                greeting = loop.create_task(self._greet(sock))
                self._greetings[greeting] = sock
                greeting.add_done_callback(partial(self._ended, sock))

    def _ended(self, sock: socket.socket, greeting: asyncio.Task[None]) -> None:
        self._greetings.pop(greeting, None)
        if greeting.cancelled():  # it has not begun: no transport closes its socket
            sock.close()

    def _hang_up(self, greeting: asyncio.Task[None]) -> None:
        sock = self._greetings.pop(greeting)
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)  # a handshake has no transport yet that could be closed
        greeting.cancel()

    async def _greet(self, sock: socket.socket) -> None:
        address, opening = peer_name(sock), Opening()
        refused: Refused | None = None
        try:
            message = await self._greeting(sock, opening)
            refused = self._consider(message, opening) if isinstance(message, Hello) else NOT_HELLO
        except ssl.SSLError as error:
            log.warning("peer_refused address=%s reason=%r", address, str(error))
        except FrameError as error:
            refused = Refused(str(error))
        except (PeerLostError, TimeoutError, OSError, asyncio.CancelledError):
            opening.abort()
        if refused is not None:
            log.warning("peer_refused address=%s reason=%r", address, refused.reason)
            opening.send(refused)
            opening.transport.close()

    async def _greeting(self, sock: socket.socket, opening: Opening) -> Greeting:
        loop, context = asyncio.get_running_loop(), self._context()
        async with asyncio.timeout(GREETING_S):
            await loop.connect_accepted_socket(
                lambda: opening,
                sock,
                ssl=context,
                ssl_handshake_timeout=None if context is None else GREETING_S,
            )
            return await opening.receive()


def peer_name(sock: socket.socket) -> str:
    """Address and port of the other end, for people."""
    with suppress(OSError):
        address, port = sock.getpeername()[:2]
        return f"{address}:{port}"
    return "?"
