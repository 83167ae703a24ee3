"""The gateway as a whole: made from its config and a link to an engine, started, drained, closed."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable
from functools import partial

import firelane
from firelane.errors import AddressInUseError, FirelaneError, TokenizerError, UsageError
from firelane.gateway.accounting import Accounting
from firelane.gateway.admission import Admission
from firelane.gateway.app import App
from firelane.gateway.assistant import Assistant
from firelane.gateway.batches.runner import Runner, Seats
from firelane.gateway.batches.service import Batches
from firelane.gateway.config import GatewayConfig
from firelane.gateway.connections import ConnectionSet, connection_limit
from firelane.gateway.engine_link import EngineLink
from firelane.gateway.files.data_dir import DataDir
from firelane.gateway.files.store import FileStore
from firelane.gateway.handlers.all import all_routes
from firelane.gateway.handlers.files import open_upload
from firelane.gateway.http import Connection
from firelane.gateway.ledger import Ledger
from firelane.gateway.model_files import read_model_files
from firelane.gateway.parts import Parts
from firelane.gateway.prompt import PromptBuilder
from firelane.gateway.responses.store import ResponseStore
from firelane.gateway.router import Router
from firelane.gateway.tenants.prices import Prices
from firelane.gateway.tenants.registry import KeyedTenants, OpenServer
from firelane.gateway.ticket import Gate
from firelane.gateway.tokenizer import load_tokenizer
from firelane.telemetry.metrics import Registry
from firelane.telemetry.traces import Traces, make_traces
from firelane.wire.frames import Ready, StepFrame

log = logging.getLogger(__name__)
SWEEP_S = 1.0
POLL_S = 0.02
LAST_WRITES_S = 0.5


class Gateway:
    """Serves HTTP for one engine link. The link is attached by the supervisor, before or after `start`.

    `on_fatal(error)` is called when the engine that became ready does not suit this gateway's tokenizer.
    """

    def __init__(
        self, config: GatewayConfig, link: EngineLink, on_fatal: Callable[[FirelaneError], None] | None = None
    ) -> None:
        """Reads the model's small files, keys and prices. Raises TokenizerError and UsageError. Needs a
        running event loop.
        """
        self._config = config
        self._link = link
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        registry = Registry({"model_name": config.served_model_names[0]})
        self._traces = make_traces(config.otlp_endpoint, time.monotonic)
        self.parts = _make_parts(config, link, registry, self._traces)
        self.app = App(self.parts, all_routes(self.parts))
        self._connections = ConnectionSet(
            self.app.handle,
            config.limits,
            self.parts.now_s,
            partial(open_upload, self.parts),
            connection_limit(config.max_connections),
        )
        self._add_gauges(registry)
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self.port = config.port
        link.events = self
        if link.ready is not None:
            self.on_ready(link.ready)

    def _add_gauges(self, registry: Registry) -> None:
        batches = self.parts.batches
        registry.gauge("firelane:http_connections", "Open connections.", lambda: len(self._connections))
        registry.gauge("firelane:batches_open", "Batches that have not ended.", lambda: batches.open)
        registry.gauge(
            "firelane:batch_requests_running", "Lines with the engine.", lambda: batches.lines_in_flight
        )

    async def start(self) -> None:
        """Listen. Sets `port`. Raises AddressInUseError when the port is taken, UsageError on a wrong
        address.
        """
        config = self._config
        try:
            self._server = await self._loop.create_server(
                lambda: Connection(self._connections), config.host, config.port, backlog=1024
            )
        except OSError as error:
            raise _listen_error(error, config) from error
        self.port = self._server.sockets[0].getsockname()[1]
        seats = Seats(self._link, self.parts.admission)
        await self.parts.batches.start(
            Runner(seats, self.app.dispatch, self.parts.tenants.named, time.monotonic)
        )
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
        log.info("listening address=http://%s:%d", config.host, self.port)

    def _sweep(self) -> None:
        self._connections.sweep()
        self.parts.admission.sweep(time.monotonic())
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def on_ready(self, ready: Ready) -> None:
        """The engine serves (called by the link)."""
        self.parts.accounting.engine_restarted()
        try:
            self.parts.tokenizer.check_vocab(ready.vocab_size)
        except TokenizerError as error:
            log.error("tokenizer_mismatch %s", error)
            self._link.close()
            if self._on_fatal is not None:
                self._on_fatal(error)

    def on_frame(self, frame: StepFrame, now_s: float) -> None:
        """A step's tokens are out (called by the link)."""
        self.parts.accounting.on_frame(frame, now_s)

    def reload(self) -> None:
        """Read keys and prices again. A file that cannot be used leaves the old ones, with a line in the log;
        requests in flight go on as they are.
        """
        self.parts.tenants.reload()
        self.parts.ledger.prices.reload()

    @property
    def in_flight(self) -> int:
        """Sequences admitted and not ended."""
        return self.parts.admission.held

    async def drain(self, timeout_s: float) -> bool:
        """Accept nothing new and let what is in flight end and reach its clients, for at most `timeout_s`.
        True when all ended. Batches pause.
        """
        self.parts.draining = True
        await self.parts.batches.pause()
        if self._server is not None:
            self._server.close()
        self._connections.close_idle()
        await self._settle(timeout_s)
        return not self.in_flight

    async def _settle(self, timeout_s: float) -> None:
        deadline_s = self._loop.time() + timeout_s
        while (self.in_flight or self._connections.unsent_bytes) and self._loop.time() < deadline_s:
            await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """End at once: requests in flight fail with 503 or an error event, then the connections close."""
        self.parts.draining = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        await self.parts.batches.pause()
        await self.app.cancel_tasks()
        self._link.close()
        self._connections.close_idle()
        await asyncio.sleep(POLL_S)  # the last writes leave
        await self._settle(LAST_WRITES_S)
        self._connections.abort_all()
        await asyncio.to_thread(self._traces.close)
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None
        await self.parts.batches.close()


def _make_parts(config: GatewayConfig, link: EngineLink, registry: Registry, traces: Traces) -> Parts:
    """Reads the model's small files, keys and prices. Raises TokenizerError and UsageError."""
    prompts = _read_model(config)
    aliases, now_s = dict(config.aliases), time.monotonic
    names = (*config.served_model_names, *aliases)
    admission = Admission(names, config.max_queue, config.max_queue_age_s)
    tenants = OpenServer() if config.api_keys is None else KeyedTenants(config.api_keys, now_s)
    ledger = Ledger(registry, Prices(config.prices), now_s, traces)
    ledger.log_prompts = config.log_prompts
    data = DataDir(config.data_dir)
    files = FileStore(data, config.files)
    tools, reasoning = config.tool_parser, config.reasoning_parser
    return Parts(
        tenants=tenants,
        admission=admission,
        ledger=ledger,
        gate=Gate(tenants, admission, ledger, aliases),
        prompts=prompts,
        assistant=Assistant(prompts, tool_parser=tools, reasoning_parser=reasoning),
        router=Router(link),
        link=link,
        accounting=Accounting(registry, link),
        served_names=config.served_model_names,
        version=firelane.__version__,
        now_s=now_s,
        created=int(time.time()),
        responses=ResponseStore(config.max_stored_responses),
        files=files,
        batches=Batches(data, files, line_bytes=config.limits.body_bytes),
        aliases=aliases,
    )


def _read_model(config: GatewayConfig) -> PromptBuilder:
    tokenizer, files = load_tokenizer(config.model_dir), read_model_files(config.model_dir)
    tokenizer.check_vocab(files.vocab_size)  # now: the engine may take minutes until it says so
    return PromptBuilder(tokenizer, files)


def _listen_error(error: OSError, config: GatewayConfig) -> FirelaneError:
    where = f"{config.host}:{config.port}"
    if error.errno == errno.EADDRINUSE or "address already in use" in str(error):
        return AddressInUseError(f"{where} is taken by another process: choose another --port")
    return UsageError(f"cannot listen on {where}: {error.strerror or error}")
