"""One gateway and its engines, from the start of their processes to the end of all: the smallest node."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING

from firelane import env
from firelane.cli.port import Port
from firelane.cli.progress import ProgressDisplay, ProgressEvents
from firelane.cli.start_lines import StartLines
from firelane.errors import FirelaneError, UsageError
from firelane.gateway.config import is_loopback
from firelane.node import systemd
from firelane.node.fleet import Fleet, Link
from firelane.node.shutdown import Shutdown
from firelane.node.supervisor import EngineExit
from firelane.telemetry.logs import event
from firelane.text.heap import map_large_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from firelane.cli.engine_shares import EngineOptions
    from firelane.cli.engines import GatewayEngines
    from firelane.gateway.config import GatewayConfig
    from firelane.gateway.engines.link import EngineLink
    from firelane.gateway.engines.replicas import ReplicaSet
    from firelane.gateway.server import Gateway
    from firelane.wire.frames import Loading, Progress, Ready

log = logging.getLogger(__name__)
Display = ProgressDisplay | ProgressEvents
LAST_FRAMES_S = 0.5
FEWEST_FILES = 256
"""Descriptors without which a server does not start."""
GC_ALLOCATIONS = 50_000
"""Between two collections, in place of the library's 700: requests leave no cycles behind."""
SWITCH_S = 0.001
"""After which a thread that decodes or renders lets the event loop on, in place of 0.005."""


def serve(config: GatewayConfig, engines: Sequence[EngineOptions], display: Display) -> int:
    """Run until a signal, or a successor's coming; returns 0. engines: of each of config.models. Raises the
    FirelaneError that ended it otherwise.
    """
    import uvloop

    raise_file_limit()
    map_large_blocks()
    env.set_for_server()
    sys.setswitchinterval(SWITCH_S)
    uvloop.run(_Service(config, engines, display).run())
    return 0


def configure_gc() -> None:
    """Called when all that lives as long as the server has been made: no collection looks at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 20, 20)


def raise_file_limit() -> None:
    """Each connection takes a descriptor: open as many as the system lets this process have. Raises
    UsageError where these are too few to serve.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft != resource.RLIM_INFINITY and soft < FEWEST_FILES:
        raise UsageError(
            f"this process may open {soft} files, and a server needs at least {FEWEST_FILES}: "
            "raise the limit (ulimit -n)"
        )


class _ModelEngines:
    """The engines of one model, and the FleetEvents of their fleet."""

    def __init__(self, name: str, options: EngineOptions, service: _Service) -> None:
        self.name = name
        self.options = options
        self.fleet: Fleet[EngineLink] = Fleet(options.configs(), self)
        self.replicas: ReplicaSet | None = None
        self.has_served = False
        self._service = service

    def make_replicas(self) -> GatewayEngines:
        from firelane.cli.engines import GatewayEngines

        engines = GatewayEngines(self.options, self._service.on_progress, self._on_loading)
        self.replicas = engines.replicas
        return engines

    @property
    def serves(self) -> bool:
        return self.replicas is not None and bool(self.replicas.serving)

    def _on_loading(self, loading: Loading) -> None:
        self._service.on_loading(self.name, loading)

    def on_ready(self, replica: str, ready: Ready) -> None:
        """The first one is told by the start's lines."""
        level = logging.INFO if self.has_served or self.options.engine.log_format == "json" else logging.DEBUG
        self.has_served = True
        log.log(
            level,
            "engine_ready model=%s replica=%s pid=%d max_model_len=%d max_num_seqs=%d kv_tokens=%d "
            "weights_bytes=%d load_s=%.2f",
            *(self.name, replica, ready.pid, ready.max_model_len, ready.max_num_seqs),
            *(ready.num_blocks * ready.block_size, ready.weights_bytes, ready.load_s),
        )
        self._service.on_ready(self.name, ready)

    def on_exit(self, replica: str, ended: EngineExit) -> None:
        if self.has_served:
            log.warning(
                "engine_exit model=%s replica=%s %s lived_s=%.1f; another one is started",
                *(self.name, replica, ended, ended.lived_s),
            )

    def on_given_up(self, ended: EngineExit, link: Link) -> None:
        """The process may be gone before its last frame, which tells why, has been read."""
        asyncio.get_running_loop().call_later(LAST_FRAMES_S, self._explain, ended, link)

    def _explain(self, ended: EngineExit, link: Link) -> None:
        failed = link.failed
        error = FirelaneError(failed.message if failed is not None else f"{ended}; its last lines are above")
        error.exit_code = failed.exit_code if failed is not None else ended.exit_code
        self._service.on_given_up(self, error)


class _Service:
    """Starts the engines' processes first and imports the gateway meanwhile: both are needed for the first
    token."""

    def __init__(
        self,
        config: GatewayConfig,
        engines: Sequence[EngineOptions],
        display: Display,
    ) -> None:
        self._config, self._display = config, display
        self._lines = StartLines(display) if isinstance(display, ProgressDisplay) else None
        self._began_s = time.perf_counter()
        self._models = [
            _ModelEngines(model.names[0], options, self)
            for model, options in zip(config.models, engines, strict=True)
        ]
        self._gateway: Gateway | None = None
        self._served = False
        self._all_ready = asyncio.Event()
        self._shutdown = Shutdown(config.drain_s)
        self._port = Port(config, self._shutdown)
        self._failure: FirelaneError | None = None
        self._restart: asyncio.Task[None] | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._shutdown.listen()
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        loop.add_signal_handler(signal.SIGUSR2, self._on_restart)
        gateway = None
        try:
            for model in self._models:
                await model.fleet.start()
            gateway = await self._start_gateway()
            await self._shutdown.wait()
            systemd.notify("STOPPING=1")
            if self._failure is None:
                await self._shutdown.drain(gateway)
        finally:
            self._display.close()
            self._port.close()
            if self._restart is not None:
                self._restart.cancel()
            stopping = [model.fleet.stop() for model in self._models]
            closing = gateway.close() if gateway is not None else asyncio.sleep(0)
            await asyncio.gather(*stopping, closing)
        if self._failure is not None:
            raise self._failure

    async def _start_gateway(self) -> Gateway:
        from firelane.gateway.server import Gateway

        engines = [model.make_replicas() for model in self._models]
        gateway = Gateway(self._config, [one.replicas for one in engines], self._fail)
        if not self._port.is_taken_over:
            await self._port.listen(gateway)
        self._gateway = gateway
        for model, own in zip(self._models, engines, strict=True):
            await model.fleet.connect(own)
        if self._port.is_taken_over:
            await self._port.take_over(gateway, self._all_ready)
            self._announce()
        configure_gc()
        return gateway

    def _on_reload(self) -> None:
        """Keys, prices and certificates are read again. A terminal that goes away sends the same signal:
        without a file to read, it ends the server as ever."""
        config = self._config
        if config.api_keys is None and config.prices is None and config.tls is None:
            self._shutdown.ask()
        elif self._gateway is not None:
            self._gateway.reload()

    def _on_restart(self) -> None:
        """One engine after the other is replaced; requests go on."""
        if self._restart is None or self._restart.done():
            log.info("restart models=%d", len(self._models))
            self._restart = asyncio.ensure_future(self._restart_all())

    async def _restart_all(self) -> None:
        for model in self._models:
            await model.fleet.restart()

    def on_progress(self, frame: Progress) -> None:
        """Show the progress of an engine that loads."""
        self._display(frame.stage, frame.done, frame.total, frame.unit)

    def on_loading(self, name: str, loading: Loading) -> None:
        if self._lines is not None:
            self._lines.loading(name, loading)
        else:
            fields = {field: getattr(loading, field) for field in loading.__struct_fields__}
            event(log, "loading", {"model": name, **fields})

    def on_ready(self, name: str, ready: Ready) -> None:
        """An engine serves, which may be the last one that was waited for."""
        if self._lines is not None:
            self._lines.ready(name, ready)
        first, self._served = not self._served, all(model.has_served for model in self._models)
        if self._served and first:
            self._display.close()
            self._all_ready.set()
            if self._failure is None and self._port.number is not None:
                self._announce()

    def on_given_up(self, model: _ModelEngines, error: FirelaneError) -> None:
        """One place of a model's engines stays empty. The server goes on while it has something to serve,
        once it has served all.
        """
        others = any(one.serves for one in self._models)
        if model.serves or (others and self._served):
            log.error("engine_given_up model=%s error=%r", model.name, str(error))
        else:
            self._fail(error)

    def _announce(self) -> None:
        systemd.notify("READY=1")
        config = self._config
        host = f"[{config.host}]" if ":" in config.host else config.host
        scheme = "http" if config.tls is None else "https"
        url, names = f"{scheme}://{host}:{self._port.number}", [model.name for model in self._models]
        ready_s = time.perf_counter() - self._began_s
        needs_key = config.api_keys is not None
        if self._lines is not None:
            note = "" if needs_key else "; needs no key"
            if not needs_key and not is_loopback(config.host):
                note = "; ANYONE who reaches the port may use it (no --api-keys)"
            self._lines.serving(names, url, ready_s, note)
            return
        fields = {"model": names[0], "models": names, "url": url}
        event(log, "serving", {**fields, "ready_s": round(ready_s, 3), "needs_key": needs_key})

    def _fail(self, error: FirelaneError) -> None:
        self._failure = self._failure or error
        self._shutdown.begin()
