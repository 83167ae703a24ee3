"""The processes that accept a server's connections: this one alone, or several that it owns."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from firelane.errors import FirelaneError
from firelane.server.engine_sharing import NOT_SHARED, EngineSharing

if TYPE_CHECKING:
    import socket

    from firelane.gateway.config import GatewayConfig, ModelConfig
    from firelane.gateway.processes.pool import GatewayPool
    from firelane.gateway.requests.model_list import Models
    from firelane.gateway.server import Gateway
    from firelane.gateway.share import GatewayShare

    ServerFront = Gateway | GatewayPool
    """The whole server, as its owner starts and ends it."""

log = logging.getLogger(__name__)


class OneProcess:
    """The gateway of this process is the server."""

    engines: EngineSharing = NOT_SHARED

    def __init__(self) -> None:
        self._gateway: Gateway | None = None

    def launch(self) -> None:
        """Start the processes beside this one. Raises MachineError."""

    def share(self) -> GatewayShare | None:
        """The part of this process."""
        return None

    def serve(self, gateway: Gateway) -> ServerFront:
        """The whole server. gateway: of this process."""
        self._gateway = gateway
        return gateway

    async def close(self) -> None:
        """End what there is; idempotent."""
        if self._gateway is not None:
            await self._gateway.close()


class SeveralProcesses(EngineSharing):
    """This process owns the others, and accepts nothing itself. It is their view of all engines, too."""

    is_shared = True

    def __init__(
        self,
        config: GatewayConfig,
        on_fatal: Callable[[FirelaneError], None],
        log_format: str,
    ) -> None:
        self.engines: EngineSharing = self
        self._config = config
        self._on_fatal, self._log_format = on_fatal, log_format
        self._next_place = 0
        self._pool: GatewayPool

    def launch(self) -> None:
        cores = len(os.sched_getaffinity(0))
        if self._config.gateways > cores:
            log.warning(
                "gateways=%d: this machine has %d cores, and more processes than those only take memory",
                *(self._config.gateways, cores),
            )
        from firelane.gateway.processes.pool import GatewayPool
        from firelane.server.gateway_process import start

        self._pool = GatewayPool(
            self._config,
            lambda index: start(index, self._log_format),
            self._on_fatal,
        )
        self._pool.launch()

    def share(self) -> GatewayShare | None:
        return self._pool.share()

    def serve(self, gateway: Gateway) -> ServerFront:
        return self._pool.front(gateway)

    async def close(self) -> None:
        if hasattr(self, "_pool"):
            await self._pool.close()

    # ---- EngineSharing

    def place(self) -> int:
        self._next_place += 1
        return self._next_place

    def add(self, place: int, model: str, replica: str, acceptor: socket.socket) -> None:
        self._pool.engines.add(place, model, replica, acceptor)

    def assign(self, place: int, role: str) -> None:
        self._pool.engines.assign(place, role)

    def retire(self, place: int) -> None:
        self._pool.engines.retire(place)

    def is_held(self, place: int) -> bool:
        return self._pool.engines.is_held(place)

    def remove(self, place: int) -> None:
        self._pool.engines.remove(place)

    def put_model(self, config: ModelConfig) -> None:
        self._pool.models.put(config)

    def remove_model(self, name: str) -> None:
        self._pool.models.remove(name)

    def follow(self, models: Models) -> None:
        self._pool.models.follow(models)


Front = OneProcess | SeveralProcesses


def make_front(
    config: GatewayConfig,
    on_fatal: Callable[[FirelaneError], None],
    log_format: str,
) -> Front:
    if config.gateways == 1:
        return OneProcess()
    return SeveralProcesses(config, on_fatal, log_format)
