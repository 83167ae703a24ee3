"""Sockets that a server accepts connections from."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence

from firelane.gateway.http.tls import HANDSHAKE_S, SHUTDOWN_S, Tls

BACKLOG = 1024


class Listener:
    """Owns them, from `start` to `close`. make: the protocol of each connection. tls: of all of
    them; None: they are plain."""

    def __init__(self, make: Callable[[], asyncio.Protocol], tls: Tls | None = None) -> None:
        self._make, self._tls = make, tls
        self._servers: list[asyncio.Server] = []
        self._closed: list[asyncio.Server] = []

    async def start(self, host: str, port: int, sockets: Sequence[socket.socket] = ()) -> None:
        """Accept on all addresses of `host`, or on sockets that listen already, and are owned from now on.
        Raises OSError."""
        for sock in sockets:
            await self._listen(sock=sock)
        if not sockets:
            await self._listen(host=host, port=port)

    @property
    def port(self) -> int:
        return self._servers[0].sockets[0].getsockname()[1]

    def copies(self) -> list[socket.socket]:
        """Of the sockets, to be handed to another process; the caller closes them."""
        return [
            socket.socket(fileno=os.dup(sock.fileno())) for server in self._servers for sock in server.sockets
        ]

    def close(self) -> None:
        """Accept nothing more, until it is started again; idempotent."""
        for server in self._servers:
            server.close()
        self._closed += self._servers
        self._servers = []

    async def wait_closed(self) -> None:
        while self._closed:
            await self._closed.pop().wait_closed()

    async def _listen(
        self, *, host: str | None = None, port: int | None = None, sock: socket.socket | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        if self._tls is None:
            server = await loop.create_server(self._make, host, port, sock=sock, backlog=BACKLOG)
        else:
            server = await loop.create_server(
                self._make,
                host,
                port,
                sock=sock,
                backlog=BACKLOG,
                ssl=self._tls.context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        self._servers.append(server)
