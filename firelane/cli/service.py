"""One gateway and one engine, from the start of the engine process to the end of both: the smallest node."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING

from firelane import env
from firelane.cli.gateway_options import is_loopback
from firelane.cli.progress import Progress as Display
from firelane.errors import FirelaneError
from firelane.node.supervisor import EngineExit, EngineSupervisor
from firelane.telemetry.logs import event
from firelane.wire.engine_config import EngineConfig

if TYPE_CHECKING:
    from firelane.gateway.config import GatewayConfig
    from firelane.gateway.engine_link import EngineLink
    from firelane.gateway.server import Gateway
    from firelane.wire.frames import Progress, Ready

log = logging.getLogger(__name__)
DRAIN_S = 10.0
"""How long requests in flight may go on after the first SIGINT or SIGTERM."""
STOP_S = 2.0
"""How long an engine may take to end after its connection, before it gets SIGTERM."""
LAST_FRAMES_S = 0.5
GC_ALLOCATIONS = 50_000
"""Between two collections, in place of the library's 700: requests leave no cycles behind."""


def serve(config: GatewayConfig, engine: EngineConfig, display: Display) -> int:
    """Run until a signal; returns 0. Raises the FirelaneError that ended it otherwise."""
    import uvloop

    env.set_for_server()
    uvloop.run(_Service(config, engine, display).run())
    return 0


def tame_gc() -> None:
    """Called when all that lives as long as the server has been made: no collection looks at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 20, 20)


def raise_file_limit() -> None:
    """Each connection takes a descriptor: open as many as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Service:
    """Starts the engine's process first and imports the gateway meanwhile: both are needed for the first
    token."""

    def __init__(self, config: GatewayConfig, engine: EngineConfig, display: Display) -> None:
        self._config, self._engine, self._display = config, engine, display
        self._began_s = time.perf_counter()
        self._first_socket: socket.socket | None = None
        self._link: EngineLink | None = None
        self._supervisor: EngineSupervisor | None = None
        self._gateway: Gateway | None = None
        self._served = False
        self._signals = 0
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._failure: FirelaneError | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        self._supervisor = EngineSupervisor(
            self._engine, self._take_socket, on_exit=self._on_exit, on_given_up=self._on_given_up
        )
        await self._supervisor.start()
        raise_file_limit()
        gateway = None
        try:
            gateway = await self._start_gateway()
            await self._stop.wait()
            if self._failure is None:
                await self._drain(gateway)
        finally:
            self._display.close()
            closing = gateway.close() if gateway is not None else asyncio.sleep(0)
            await asyncio.gather(self._supervisor.stop(self._engine_grace_s()), closing)
        if self._failure is not None:
            raise self._failure

    async def _start_gateway(self) -> Gateway:
        from firelane.gateway.engine_link import EngineLink
        from firelane.gateway.server import Gateway

        link = self._link = EngineLink()
        link.on_progress, link.on_ready = self._on_progress, self._on_ready
        gateway = Gateway(self._config, link, self._fail)
        await gateway.start()
        tame_gc()
        self._gateway = gateway
        self._port = gateway.port
        if self._first_socket is not None:
            await link.attach(self._first_socket)
        return gateway

    def _engine_grace_s(self) -> float:
        """An engine that serves ends by itself when its connection does; one that still loads would not hear
        of it."""
        serves = self._link is not None and self._link.ready is not None
        return STOP_S if serves else 0.0

    async def _take_socket(self, sock: socket.socket) -> None:
        """The first engine's socket comes before there is a gateway."""
        if self._link is None:
            self._first_socket = sock
        else:
            await self._link.attach(sock)

    async def _drain(self, gateway: Gateway) -> None:
        if gateway.in_flight:
            log.info("draining requests=%d timeout_s=%g", gateway.in_flight, DRAIN_S)
        draining = asyncio.ensure_future(gateway.drain(DRAIN_S))
        at_once = asyncio.ensure_future(self._stop_now.wait())
        await asyncio.wait((draining, at_once), return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, at_once):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _on_signal(self) -> None:
        self._signals += 1
        (self._stop if self._signals == 1 else self._stop_now).set()

    def _on_reload(self) -> None:
        """Keys and prices are read again. A terminal that goes away sends the same signal: without a file to
        read, it ends the server as ever."""
        if self._config.api_keys is None and self._config.prices is None:
            self._on_signal()
        elif self._gateway is not None:
            self._gateway.reload()

    def _on_progress(self, frame: Progress) -> None:
        self._display(frame.stage, frame.done, frame.total, frame.unit)

    def _on_ready(self, ready: Ready) -> None:
        assert self._supervisor is not None
        first, self._served = not self._served, True
        self._supervisor.mark_ready()
        self._display.close()
        log.info(
            "engine_ready pid=%d max_model_len=%d max_num_seqs=%d kv_tokens=%d weights_bytes=%d load_s=%.2f",
            ready.pid,
            ready.max_model_len,
            ready.max_num_seqs,
            ready.num_blocks * ready.block_size,
            ready.weights_bytes,
            ready.load_s,
        )
        if first and self._failure is None:
            self._say_ready()

    def _say_ready(self) -> None:
        config = self._config
        host = f"[{config.host}]" if ":" in config.host else config.host
        url, name = f"http://{host}:{self._port}", config.served_model_names[0]
        ready_s = round(time.perf_counter() - self._began_s, 3)
        needs_key = config.api_keys is not None
        if self._engine.log_format == "json":
            event(log, "serving", {"model": name, "url": url, "ready_s": ready_s, "needs_key": needs_key})
            return
        if not needs_key:
            who = "anyone on this machine" if is_loopback(config.host) else "ANYONE who reaches the port"
            print(f"firelane: no --api-keys: {who} may use the server, without a key", file=sys.stderr)
        print(
            f"firelane: serving {name} at {url} (ready in {ready_s:.2f} s). Try:\n"
            f"  curl {url}/v1/completions -H 'Content-Type: application/json' \\\n"
            f'    -d \'{{"model": "{name}", "prompt": "def main():", "max_tokens": 32}}\'',
            file=sys.stderr,
            flush=True,
        )

    def _on_exit(self, ended: EngineExit) -> None:
        if self._served:
            log.warning("engine_exit %s lived_s=%.1f; another one is started", ended, ended.lived_s)

    def _on_given_up(self, ended: EngineExit) -> None:
        # The process may be gone before its last frame, which tells why, has been read.
        asyncio.get_running_loop().call_later(LAST_FRAMES_S, self._explain, ended)

    def _explain(self, ended: EngineExit) -> None:
        failed = self._link.failed if self._link is not None else None
        error = FirelaneError(failed.message if failed is not None else f"{ended}; its last lines are above")
        error.exit_code = failed.exit_code if failed is not None else ended.exit_code
        self._fail(error)

    def _fail(self, error: FirelaneError) -> None:
        self._failure = self._failure or error
        self._stop.set()
