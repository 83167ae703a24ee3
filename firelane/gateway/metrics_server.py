"""A second port with the metrics and the health alone, and without keys, for those who watch the server."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from firelane.gateway.app import App
from firelane.gateway.config import HttpLimits
from firelane.gateway.http.connections import ConnectionSet
from firelane.gateway.http.exchange import Route
from firelane.gateway.http.listener import HttpListener
from firelane.gateway.http.origins import OriginPolicy
from firelane.gateway.http.protocol import HttpConnection
from firelane.gateway.services import Services
from firelane.gateway.tenants.registry import NoAuth

PATHS = ("/metrics", "/health")
MOST_CONNECTIONS = 64


class MetricsServer:
    """Owned by the gateway, whose routes it answers with."""

    def __init__(
        self, services: Services, routes: Iterable[Route], origins: OriginPolicy, limits: HttpLimits
    ) -> None:
        mine = [replace(one, public=True, admin=False) for one in routes if one.pattern in PATHS]
        app = App(NoAuth(), services.usage, services.metrics, mine, origins)
        self._connections = ConnectionSet(
            app.handle, limits, time.monotonic, app.accept, max_open=MOST_CONNECTIONS
        )
        self.listener = HttpListener(lambda: HttpConnection(self._connections))
        self.port = 0

    async def start(self, host: str, port: int, sockets: Sequence[socket.socket] = ()) -> None:
        """Listen, on `sockets` where there are any. Sets `port`. Raises OSError."""
        await self.listener.start(host, port, sockets)
        self.port = self.listener.port

    def sweep(self) -> None:
        self._connections.sweep()

    def close(self) -> None:
        self.listener.close()
        self._connections.abort_all()
