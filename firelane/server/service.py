"""One gateway and its engines, from the start of their processes to the end of all: the smallest node."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from typing import TYPE_CHECKING

from firelane.engine_state import GaveUp
from firelane.errors import FirelaneError
from firelane.gateway.config import is_loopback
from firelane.node import systemd
from firelane.node.shutdown import Shutdown
from firelane.server import process_setup
from firelane.server.front import Front, make_front
from firelane.server.model_set import ModelSet
from firelane.server.model_spec import ModelSpec
from firelane.server.node_plan import FIXED, NodePlan
from firelane.server.port import Port
from firelane.server.progress import ProgressDisplay
from firelane.server.start_lines import Display, Serving, start_report
from firelane.wire.frames import Ready

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from firelane.engine_state import EngineEvent
    from firelane.gateway.config import GatewayConfig
    from firelane.gateway.engines.replicas import ReplicaSet
    from firelane.gateway.requests.model_list import Models
    from firelane.gateway.server import Gateway
    from firelane.server.front import ServerFront

    Reread = Callable[[], tuple[NodePlan, Sequence[ModelSpec]]]

log = logging.getLogger(__name__)
SWEEP_S = 1.0


def serve(
    config: GatewayConfig,
    models: Sequence[ModelSpec],
    display: Display,
    plan: NodePlan = FIXED,
    reread: Reread | None = None,
) -> int:
    """Run until a signal, or a successor's coming; returns 0. models: those of `config`. reread: reads what
    describes the models again. Raises the FirelaneError that ended it otherwise.
    """
    import uvloop

    process_setup.set_up()
    uvloop.run(_Service(config, models, display, plan, reread).run())
    return 0


class _Service:
    """Starts the engines' processes first and imports the gateway meanwhile: both are needed for the first
    token."""

    def __init__(
        self,
        config: GatewayConfig,
        models: Sequence[ModelSpec],
        display: Display,
        plan: NodePlan = FIXED,
        reread: Reread | None = None,
    ) -> None:
        self._config, self._report = config, start_report(display)
        self._began_s = time.perf_counter()
        log_format = "text" if isinstance(display, ProgressDisplay) else "json"
        self._front: Front = make_front(config, self._fail, log_format)
        self._models = ModelSet(self.on_event, plan, models, self._front.engines)
        self._node, self._plan, self._reread = self._models.node, plan, reread
        self._gateway: ServerFront | None = None
        self._served_models: Models | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._told_formats: set[str] = set()
        self._served = False
        self._all_ready = asyncio.Event()
        self._shutdown = Shutdown(config.drain_s)
        self._port = Port(config, self._shutdown)
        self._failure: FirelaneError | None = None
        self._restart: asyncio.Task[None] | None = None
        self._reload: asyncio.Task[None] | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._shutdown.listen()
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        loop.add_signal_handler(signal.SIGUSR2, self._on_restart)
        gateway = None
        try:
            await self._node.start()
            self._front.launch()
            gateway = await self._start_gateway()
            self._sweep()
            await self._shutdown.wait()
            systemd.notify("STOPPING=1")
            if self._failure is None:
                await self._shutdown.drain(gateway)
        finally:
            self._report.close()
            self._port.close()
            for task in (self._restart, self._reload):
                if task is not None:
                    task.cancel()
            if self._sweeper is not None:
                self._sweeper.cancel()
            await self._node.close()
            stopping = [model.fleet.stop() for model in self._models]
            await asyncio.gather(*stopping, self._front.close())
            for model in self._models:
                model.close()
        if self._failure is not None:
            raise self._failure

    async def _start_gateway(self) -> ServerFront:
        from firelane.gateway.server import Gateway
        from firelane.server.node_control import Control

        def make(replicas: list[ReplicaSet]) -> Gateway:
            control = Control(self._node, self._models.__getitem__, self._models.update)
            gateway = Gateway(self._config, replicas, self._fail, control, self._front.share())
            self._gateway = self._front.serve(gateway)
            self._served_models = gateway.services.models
            return gateway

        await self._models.connect(make, self._listen)
        process_setup.freeze_made()
        for model in self._models:
            self._tell_format(model.name)
        if self._has_all:
            self._all_ready.set()
        assert self._gateway is not None
        if self._port.is_taken_over:
            await self._port.take_over(self._gateway, self._all_ready)
        self._announce_once()
        return self._gateway

    async def _listen(self, _: Gateway) -> None:
        assert self._gateway is not None
        if not self._port.is_taken_over:
            await self._port.listen(self._gateway)

    def _announce_once(self) -> None:
        if self._has_all and not self._served and self._port.number is not None:
            self._announce()

    def _sweep(self) -> None:
        self._node.sweep()
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _on_reload(self) -> None:
        """Files are read again: keys, prices, certificates, models. A terminal that goes away sends the same
        signal: without a file to read, it ends the server as ever."""
        config = self._config
        if (config.api_keys, config.prices, config.tls, self._reread) == (None,) * 4:
            self._shutdown.ask()
        elif self._gateway is not None:
            self._gateway.reload()
            if self._reread is not None and (self._reload is None or self._reload.done()):
                self._reload = asyncio.ensure_future(self._reload_models(self._reread))

    async def _reload_models(self, reread: Reread) -> None:
        """Errors of the file are told, and change nothing."""
        try:
            plan, models = await asyncio.to_thread(reread)
        except FirelaneError as error:
            log.error("reload_refused error=%r; all stays as it is", str(error))
            return
        await self._models.apply(plan, models)
        log.info("reload_complete models=%d", len(self._models))

    def _on_restart(self) -> None:
        """One engine after the other is replaced; requests go on."""
        if self._restart is None or self._restart.done():
            log.info("restart models=%d", len(self._models))
            self._restart = asyncio.ensure_future(self._restart_all())

    async def _restart_all(self) -> None:
        for model in list(self._models):
            if model.serves:
                await model.fleet.restart()

    def on_event(self, name: str, event: EngineEvent) -> None:
        """Something has happened to an engine of the model of this name."""
        self._report.tell(name, event)
        if isinstance(event, GaveUp):
            self._on_given_up(name, event)
            return
        if isinstance(event, Ready):
            self._tell_format(name)
        self._node.apply(self._node[name], event)
        if isinstance(event, Ready):
            if self._has_all:
                self._all_ready.set()
            self._announce_once()

    def _tell_format(self, name: str) -> None:
        """Name the format of a model's chats, once its files are read."""
        text = None if self._served_models is None else self._served_models.named(name).text
        if text is None or text.prompts.template is None or name in self._told_formats:
            return
        self._told_formats.add(name)
        line = text.assistant.chat_format.line
        self._report.chat_format(name, line, is_alone=len(list(self._models)) == 1)

    @property
    def _has_all(self) -> bool:
        """All models that are there from the start have been ready."""
        first = (model for model in self._node if model.policy.loads_first)
        return all(self._models[model.name].has_served for model in first)

    def _on_given_up(self, name: str, event: GaveUp) -> None:
        """A server goes on while it has something to serve, once it has served all; a node in any case."""
        others = any(one.serves for one in self._models)
        if self._models[name].serves or not self._plan.is_fixed or (others and self._served):
            log.error("engine_given_up model=%s error=%r", name, event.message)
            self._node.apply(self._node[name], event)
        else:
            error = FirelaneError(event.message)
            error.exit_code = event.exit_code
            self._fail(error)

    def _announce(self) -> None:
        self._served = True
        self._report.close()
        if self._failure is not None:
            return
        systemd.notify("READY=1")
        config = self._config
        host = f"[{config.host}]" if ":" in config.host else config.host
        scheme = "http" if config.tls is None else "https"
        needs_key = config.api_keys is not None
        now = Serving(
            names=[model.name for model in self._models],
            url=f"{scheme}://{host}:{self._port.number}",
            ready_s=time.perf_counter() - self._began_s,
            needs_key=needs_key,
            is_open=not needs_key and not is_loopback(config.host),
        )
        self._report.serving(now)

    def _fail(self, error: FirelaneError) -> None:
        self._failure = self._failure or error
        self._shutdown.begin()
