"""One engine and its host: the process kept alive, gateways let in, both ended in order."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import uvloop

from firelane.cluster.host import EngineHost
from firelane.engine_state import EngineEvent, Exited, GaveUp
from firelane.errors import FirelaneError
from firelane.link.tls import ContextSource
from firelane.node import systemd
from firelane.node.fleet import LAST_FRAMES_S, Fleet
from firelane.node.shutdown import Shutdown
from firelane.server import process_setup
from firelane.server.engine_sharing import OneGateway
from firelane.server.model import Model
from firelane.server.model_spec import lone_model
from firelane.server.remote_engines import hello_of
from firelane.server.start_lines import Display, start_report
from firelane.wire.frames import Ready

if TYPE_CHECKING:
    from firelane.cluster.addresses import Address
    from firelane.server.engine_shares import EngineOptions


def serve_engine(
    options: EngineOptions, address: Address, context: ContextSource, display: Display, drain_s: float
) -> int:
    """Run until a signal; returns 0. Raises the FirelaneError that ended it otherwise."""
    process_setup.set_up()
    uvloop.run(_Service(options, address, context, display, drain_s).run())
    return 0


class _Service:
    """One engine, and who else may connect to it."""

    def __init__(
        self,
        options: EngineOptions,
        address: Address,
        context: ContextSource,
        display: Display,
        drain_s: float,
    ) -> None:
        self._address, self._report = address, start_report(display)
        self._host = EngineHost(hello_of(options.engine), context)
        self._drain_s, self._shutdown = drain_s, Shutdown(drain_s)
        self._failure: FirelaneError | None = None
        self._began_s, self._port, self._served = time.perf_counter(), 0, False
        self._model = Model(lone_model(options), self._on_event, OneGateway(self._host.take_engine))

    async def run(self) -> None:
        self._shutdown.listen()
        try:
            self._port = await self._host.listen(self._address)
            await self._model.start()
            await self._model.connect()
            await self._shutdown.wait()
            systemd.notify("STOPPING=1")
            self._host.end_greetings()
            if self._failure is None:
                await self._shutdown.drain(self)
        finally:
            self._report.close()
            await self._model.fleet.stop()
            await self._host.close()
        if self._failure is not None:
            raise self._failure

    # ---- as Shutdown sees it

    @property
    def in_flight(self) -> int:
        stats = self._model.make_replicas().figures.stats
        return stats.running + stats.waiting

    async def drain(self, timeout_s: float) -> None:
        """The engine ends when it has nothing left, and gives back what it does not come to."""
        serves = self._model.serves
        self._model.make_replicas().drain(timeout_s)
        assert isinstance(self._model.fleet, Fleet)
        for replica in self._model.fleet.replicas:
            await replica.supervisor.stop(timeout_s + LAST_FRAMES_S if serves else 0.0)

    async def retire(self) -> None:
        """Nobody succeeds it."""
        await self.drain(self._drain_s)

    # ---- what the engine tells

    def _on_event(self, model: str, event: EngineEvent) -> None:
        self._report.tell(model, event)
        if isinstance(event, Exited):
            self._host.lose_engine()
        elif isinstance(event, Ready) and not self._served:
            self._announce(model, event)
        elif isinstance(event, GaveUp):
            error = FirelaneError(event.message)
            error.exit_code = event.exit_code
            self._failure = self._failure or error
            self._shutdown.begin()

    def _announce(self, model: str, ready: Ready) -> None:
        self._served = True
        self._report.close()
        ready_s = time.perf_counter() - self._began_s
        self._report.listening(model, str(self._address._replace(port=self._port)), ready_s, ready)
        systemd.notify("READY=1")
