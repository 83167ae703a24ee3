"""One engine and its host: the process kept alive, gateways let in, both ended in order."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from typing import TYPE_CHECKING

import uvloop

from firelane.cluster.host import EngineHost
from firelane.errors import FirelaneError
from firelane.node import systemd
from firelane.node.fleet import Fleet, Link
from firelane.node.shutdown import Shutdown
from firelane.node.supervisor import EngineExit
from firelane.server import process_setup
from firelane.server.engine_sharing import OneGateway
from firelane.server.engines import GatewayEngines
from firelane.server.progress import ProgressDisplay, ProgressEvents
from firelane.server.remote_engines import hello_of
from firelane.server.start_lines import StartLines
from firelane.telemetry.logs import event

if TYPE_CHECKING:
    from firelane.cluster.addresses import Address
    from firelane.gateway.engines.link.link import EngineLink
    from firelane.server.engine_shares import EngineOptions
    from firelane.wire.frames import Loading, Progress, Ready

log = logging.getLogger(__name__)
Display = ProgressDisplay | ProgressEvents
LAST_FRAMES_S = 0.5


def serve_engine(
    options: EngineOptions, address: Address, context: ssl.SSLContext | None, display: Display, drain_s: float
) -> int:
    """Run until a signal; returns 0. Raises the FirelaneError that ended it otherwise."""
    process_setup.set_up()
    uvloop.run(_Service(options, address, context, display, drain_s).run())
    return 0


class _Service:
    """FleetEvents of the one engine."""

    def __init__(
        self,
        options: EngineOptions,
        address: Address,
        context: ssl.SSLContext | None,
        display: Display,
        drain_s: float,
    ) -> None:
        self._options, self._address, self._display = options, address, display
        self._host = EngineHost(hello_of(options.engine), context)
        self._drain_s, self._shutdown = drain_s, Shutdown(drain_s)
        self._lines = StartLines(display) if isinstance(display, ProgressDisplay) else None
        self._name = options.engine.model_dir.name
        self._failure: FirelaneError | None = None
        self._began_s, self._port, self._served = time.perf_counter(), 0, False
        self._fleet: Fleet[EngineLink] = Fleet(
            options.configs(), self, is_shared=True, remote=options.remote_peers
        )
        self._engines = GatewayEngines(
            options,
            self._on_progress,
            self._on_loading,
            model=self._name,
            sharing=OneGateway(self._host.take_engine),
        )

    async def run(self) -> None:
        self._shutdown.listen()
        try:
            self._port = await self._host.listen(self._address)
            await self._fleet.start()
            await self._fleet.connect(self._engines)
            await self._shutdown.wait()
            systemd.notify("STOPPING=1")
            self._host.end_greetings()
            if self._failure is None:
                await self._shutdown.drain(self)
        finally:
            self._display.close()
            await self._fleet.stop()
            await self._host.close()
        if self._failure is not None:
            raise self._failure

    # ---- as Shutdown sees it

    @property
    def in_flight(self) -> int:
        return self._engines.replicas.stats.running + self._engines.replicas.stats.waiting

    async def drain(self, timeout_s: float) -> None:
        """The engine ends when it has nothing left, and gives back what it does not come to."""
        replica = self._fleet.replicas[0]
        serves = replica.link is not None and replica.link.is_ready
        for link in self._engines.replicas.links:
            link.drain(timeout_s)
        await replica.supervisor.stop(timeout_s + LAST_FRAMES_S if serves else 0.0)

    async def retire(self) -> None:
        """Nobody succeeds it."""
        await self.drain(self._drain_s)

    # ---- what the engine tells

    def _on_progress(self, frame: Progress) -> None:
        self._display(frame.stage, frame.done, frame.total, frame.unit)

    def _on_loading(self, loading: Loading) -> None:
        if self._lines is not None:
            self._lines.loading(self._name, loading)
        else:
            fields = {field: getattr(loading, field) for field in loading.__struct_fields__}
            event(log, "loading", {"model": self._name, **fields})

    def on_ready(self, replica: str, ready: Ready) -> None:
        del replica
        if self._served:
            log.info("engine_ready pid=%d load_s=%.2f", ready.pid, ready.load_s)
            return
        self._served = True
        self._display.close()
        ready_s = time.perf_counter() - self._began_s
        address = str(self._address._replace(port=self._port))
        if self._lines is not None:
            self._lines.ready(self._name, ready)
            self._lines.listening(self._name, address, ready_s, ready)
        else:
            fields = {"model": self._name, "address": address, "ready_s": round(ready_s, 3)}
            event(log, "listening", {**fields, "role": ready.role, "pages_address": ready.pages_address})
        systemd.notify("READY=1")

    def on_exit(self, replica: str, ended: EngineExit) -> None:
        del replica
        self._host.lose_engine()
        if self._served:
            log.warning("engine_exit %s lived_s=%.1f; another one is started", ended, ended.lived_s)

    def on_given_up(self, ended: EngineExit, link: Link) -> None:
        """The process may be gone before its last frame, which tells why, has been read."""
        asyncio.get_running_loop().call_later(LAST_FRAMES_S, self._explain, ended, link)

    def _explain(self, ended: EngineExit, link: Link) -> None:
        failed = link.failed
        error = FirelaneError(failed.message if failed is not None else f"{ended}; its last lines are above")
        error.exit_code = failed.exit_code if failed is not None else ended.exit_code
        self._failure = self._failure or error
        self._shutdown.begin()
