"""Sockets that a server accepts connections from."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from firelane.errors import AddressInUseError, FirelaneError, UsageError
from firelane.link.tls import ServerTls

BACKLOG = 1024
PROTOCOL = "http/1.1"
"""Agreed on with clients of TLS (ALPN)."""
HANDSHAKE_S, SHUTDOWN_S = 10.0, 2.0
TIMEOUTS = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": SHUTDOWN_S}
Listen = Callable[..., Awaitable[asyncio.Server]]


class HttpListener:
    """Owns them, from `start` to `close`. make: the protocol of each connection. tls: of all of
    them; None: they are plain."""

    def __init__(self, make: Callable[[], asyncio.Protocol], tls: ServerTls | None = None) -> None:
        self._make, self._tls = make, tls
        self._servers: list[asyncio.Server] = []
        self._closed: list[asyncio.Server] = []

    async def start(self, host: str, port: int, sockets: Sequence[socket.socket] = ()) -> None:
        """Accept on all addresses of `host`, or on sockets that listen already, and are owned from now on.
        Raises OSError."""
        tls: dict[str, Any] = {} if self._tls is None else {"ssl": self._tls.context, **TIMEOUTS}
        loop = asyncio.get_running_loop()
        listen: Listen = partial(loop.create_server, self._make, backlog=BACKLOG, **tls)
        for sock in sockets:
            self._servers.append(await listen(sock=sock))
        if not sockets:
            self._servers.append(await listen(host=host, port=port))

    @property
    def port(self) -> int:
        return self._servers[0].sockets[0].getsockname()[1]

    def copies(self) -> list[socket.socket]:
        """Copies of the sockets, to be handed to another process; the caller closes them."""
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


def listen_error(error: OSError, host: str, port: int, option: str) -> FirelaneError:
    """The error for people of an address that cannot be listened on. option: names the port."""
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE or "address already in use" in str(error):
        return AddressInUseError(f"{where} is taken by another process: choose another {option}")
    return UsageError(f"cannot listen on {where}: {error.strerror or error}")
