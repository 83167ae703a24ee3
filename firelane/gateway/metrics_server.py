"""A second port with the metrics and the health alone, and without keys, for those who watch the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace

from firelane.gateway.app import App
from firelane.gateway.config import HttpLimits
from firelane.gateway.http.connections import ConnectionSet
from firelane.gateway.http.exchange import Route
from firelane.gateway.http.origins import OriginPolicy
from firelane.gateway.http.protocol import Connection
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
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen. Sets `port`. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self._connections), host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    def sweep(self) -> None:
        self._connections.sweep()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._connections.abort_all()
