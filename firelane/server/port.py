"""The port of a server: whom it comes from, and who takes it over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from firelane.node import systemd
from firelane.node.handover import HandoverPoint, Predecessor, Sockets, socket_path
from firelane.node.shutdown import Shutdown

if TYPE_CHECKING:
    from firelane.gateway.config import GatewayConfig
    from firelane.server.front import ServerFront


class Port:
    """Made from its server's config. See handover.Owner. number: None until the server listens."""

    def __init__(self, config: GatewayConfig, shutdown: Shutdown) -> None:
        self.number: int | None = None
        self._config, self._shutdown = config, shutdown
        self._gateway: ServerFront | None = None
        self._handover: HandoverPoint | None = None
        place = self._place(config.port)
        self._predecessor = place if config.take_over and place is not None and place.exists() else None

    @property
    def is_taken_over(self) -> bool:
        """Another server has it at the start: `take_over` follows, in the place of `listen`."""
        return self._predecessor is not None

    async def listen(self, gateway: ServerFront, sockets: Sockets | None = None) -> None:
        """On `sockets`, else on those that systemd passes, else on a port of its own."""
        await gateway.start(sockets or {"http": systemd.passed_sockets()})
        self._gateway, self.number = gateway, gateway.port
        place = self._place(gateway.port)
        if place is not None:
            self._handover = HandoverPoint(place, self)
            self._handover.open()

    async def take_over(self, gateway: ServerFront, ready: asyncio.Event) -> None:
        """Once all models are ready: until then the other server has all requests."""
        assert self._predecessor is not None
        await self._shutdown.begun_or(ready)
        if self._shutdown.has_begun:
            return
        predecessor = Predecessor.find(self._predecessor)
        if predecessor is None:
            await self.listen(gateway)
            return
        try:
            await self.listen(gateway, await asyncio.to_thread(predecessor.take))
            predecessor.tell_serving()
        finally:
            predecessor.close()

    async def release(self) -> Sockets:
        assert self._gateway is not None
        return await self._gateway.release()

    async def resume(self, sockets: Sockets) -> None:
        assert self._gateway is not None
        await self._gateway.resume(sockets)

    def succeeded(self) -> None:
        self._shutdown.succeed()

    def close(self) -> None:
        """No successor comes any more; idempotent."""
        if self._handover is not None:
            self._handover.close()

    def _place(self, number: int) -> Path | None:
        run_dir = self._config.run_dir
        return None if run_dir is None else socket_path(run_dir, self._config.host, number)
