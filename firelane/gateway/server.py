"""The gateway as a whole: made from its config and the engines of its models, started, drained, closed."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import firelane
from firelane.child_process import Replacements
from firelane.errors import FirelaneError, TokenizerError
from firelane.gateway.apis.routes import all_routes
from firelane.gateway.app import App
from firelane.gateway.batches.runner import BatchRunner
from firelane.gateway.batches.service import Batches
from firelane.gateway.bodies import Bodies
from firelane.gateway.config import GatewayConfig, ModelConfig, is_loopback
from firelane.gateway.conversations.turn import ConversationStores
from firelane.gateway.engines.observer import ReplicaListener
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.gateway.engines.roles.role_control import NoRoleControl, RoleControl, role_control
from firelane.gateway.files.data_dir import DataDir
from firelane.gateway.files.store import FileStore
from firelane.gateway.files.upload import FORM_BYTES
from firelane.gateway.http.connections import ConnectionSet, connection_limit
from firelane.gateway.http.exchange import Route
from firelane.gateway.http.listener import PROTOCOL, HttpListener, listen_error
from firelane.gateway.http.origins import OriginPolicy, origin_policy
from firelane.gateway.http.protocol import HttpConnection
from firelane.gateway.metrics_server import MetricsServer
from firelane.gateway.requests.admission import AdmissionController
from firelane.gateway.requests.control import FIXED, NodeControl, add_node_metrics
from firelane.gateway.requests.metrics import ModelMetrics, ServerMetrics
from firelane.gateway.requests.model_list import Models
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.requests.text_side import TextSide, read_text_side
from firelane.gateway.requests.usage_log import Prices, UsageLog
from firelane.gateway.server_gauges import add_gauges
from firelane.gateway.services import Replies, Services
from firelane.gateway.share import GatewayShare
from firelane.gateway.streams.kept_streams import KeptStreams
from firelane.gateway.tenants.registry import ApiKeyAuth, NoAuth, Tenants
from firelane.link.tls import ServerTls
from firelane.telemetry.metrics import Registry
from firelane.telemetry.tracer import make_traces
from firelane.wire.frames import Ready

log = logging.getLogger(__name__)
SWEEP_S = 1.0
POLL_S = 0.02
LAST_WRITES_S = 0.5
RETIRED_IDLE_S = 5.0
HTTP, METRICS = "http", "metrics"
Sockets = Mapping[str, Sequence[socket.socket]]
"""Listening sockets by what they are for: HTTP, METRICS."""


class Gateway:
    """Serves HTTP for the models of its config. Owns their engines' links, which supervisors attach, before
    or after `start`.
    """

    def __init__(
        self,
        config: GatewayConfig,
        engines: Sequence[ReplicaSet],
        on_fatal: Callable[[FirelaneError], None] | None = None,
        control: NodeControl = FIXED,
        share: GatewayShare | None = None,
    ) -> None:
        """engines: one for each of config.models. on_fatal: called when an engine that became ready does not
        suit its model's tokenizer. control: of which models are in memory. share: its part in a server of
        several processes. Reads the models' small files, keys and prices; raises TokenizerError and
        UsageError. Needs a running event loop.
        """
        self._share = share or GatewayShare()
        self._config = config
        self._on_fatal = on_fatal
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._registry = Registry()
        self._replaced = Replacements()
        self._traces = make_traces(config.otlp_endpoint, time.monotonic)
        self.services = self._make_services(engines)
        services = self.services
        routes, origins = self._routes(), _origins(config)
        self.app = App(services.tenants, services.usage, services.metrics, routes, origins)
        self.metrics = MetricsServer(services, routes, origins, config.limits)
        limit, answered = connection_limit(config.max_connections), services.metrics.answered
        handlers = (self.app.handle, config.limits, services.now_s, self.app.accept)
        self._connections = ConnectionSet(*handlers, limit, answered)
        self._relayed = ConnectionSet(*handlers)
        add_gauges(self._registry, self._connections, services.batches, self._replacements)
        add_node_metrics(self._registry, control)
        services.streams.add_metrics(self._registry)
        self._tls = None if config.tls is None else ServerTls(config.tls, PROTOCOL)
        self._listener = HttpListener(partial(HttpConnection, self._connections), self._tls)
        self._sweeper: asyncio.TimerHandle | None = None
        self.port = config.port
        for model in services.models:
            self._listen_to(model)
            if model.engines.ready is not None:
                self._check_vocab(model, model.engines.ready)

    def _routes(self) -> list[Route]:
        routes, relay = all_routes(self.services), self._share.relay
        most = max(self._config.limits.body_bytes, self._config.files.upload_bytes + FORM_BYTES)
        return list(routes if relay is None else relay.routes(routes, most))

    def _make_services(self, engines: Sequence[ReplicaSet]) -> Services:
        config, now_s = self._config, time.monotonic
        counts = self._share.counts
        tenants = NoAuth() if config.api_keys is None else ApiKeyAuth(config.api_keys, now_s, counts)
        usage = UsageLog(self._registry, Prices(config.prices), now_s, self._traces)
        usage.log_prompts = config.log_prompts
        metrics = ServerMetrics(self._registry)
        models = [
            self._make_model(model, own, metrics, self._admission(model, tenants, usage))
            for model, own in zip(config.models, engines, strict=True)
        ]
        data = DataDir(config.data_dir)
        files = FileStore(data, config.files)
        return Services(
            models=Models(models, any_name=config.any_model),
            tenants=tenants,
            usage=usage,
            metrics=metrics,
            bodies=Bodies(
                refuse_unknown=config.unknown_fields == "refuse", most_bytes=config.limits.body_bytes
            ),
            replies=Replies(metrics),
            kept=ConversationStores.of(config.max_stored_responses),
            streams=KeptStreams(config.streams, self._share.relay),
            files=files,
            batches=Batches(data, files, line_bytes=config.limits.body_bytes),
            control=self._control,
            version=firelane.__version__,
            now_s=now_s,
            created=self._share.created or int(time.time()),
            refresh=self._share.refresh,
            replaced=self._replaced,
        )

    def _admission(self, model: ModelConfig, tenants: Tenants, usage: UsageLog) -> AdmissionController:
        config, counts = self._config, self._share.counts
        limits = config.max_queue, config.max_queue_age_s
        return AdmissionController(tenants, usage, *limits, model=model.names[0], counts=counts)

    def _make_model(
        self, config: ModelConfig, engines: ReplicaSet, metrics: ServerMetrics, admission: AdmissionController
    ) -> ServedModel:
        text = read_text_side(config, self._replaced)
        admission.usage.model(config.names[0])
        labelled = self._registry.labelled(model_name=config.names[0])
        own = ModelMetrics(labelled, engines, metrics)
        return ServedModel(
            names=config.names,
            aliases=dict(config.aliases),
            first_adapters=config.adapters,
            text=text,
            engines=engines,
            admission=admission,
            metrics=own,
            version=firelane.__version__,
            waits=self._config.wait,
            tenants=None if config.tenants is None else frozenset(config.tenants),
            role_control=self._role_control(config, engines, own),
        )

    def _role_control(
        self, config: ModelConfig, engines: ReplicaSet, metrics: ModelMetrics
    ) -> RoleControl | NoRoleControl:
        """Roles are changed by the process that owns the engines."""
        return role_control(config.role_targets if self._share.relay is None else None, engines, metrics)

    def add_model(
        self, config: ModelConfig, engines: ReplicaSet, before: ServedModel | None = None
    ) -> ServedModel:
        """Serve one more model. before: what `add_model` made of one of this name, which was removed. Raises
        TokenizerError.
        """
        services = self.services
        if before is None:
            admission = self._admission(config, services.tenants, services.usage)
            before = self._make_model(config, engines, services.metrics, admission)
            self._listen_to(before)
        else:
            self._set_up(before, config)
        services.models.add(before)
        return before

    def change_model(self, name: str, config: ModelConfig) -> None:
        """Other aliases, tenants, targets of roles, or files of the text side. Raises TokenizerError."""
        self._set_up(self.services.models.named(name), config)
        self.services.models.index()

    def update_model(self, name: str, config: ModelConfig) -> tuple[ServedModel, TextSide | None]:
        """Have new requests get the weights and the text side of `config`; those that have begun go on with
        what they have. Returns the model as it is now, and the text side before: the caller closes it once
        no request needs it. Raises TokenizerError.
        """
        models = self.services.models
        old = models.named(name)
        new = replace(
            old, text=read_text_side(config, self._replaced), weights=config.version, successor=None
        )
        ready = next(
            (one.ready for one in old.engines.serving if one.lifecycle.version == config.version), None
        )
        if ready is not None:
            new.tokenizer.check_vocab(ready.vocab_size)
        models.replace(old, new)
        new.engines.figures.version = config.version
        new.engines.figures.resize()
        self._listen_to(new)
        return new, old.text

    def _set_up(self, model: ServedModel, config: ModelConfig) -> None:
        """Anew, for requests that come from now on."""
        model.text, old = read_text_side(config, self._replaced), model.text
        model.aliases, model.first_adapters = dict(config.aliases), config.adapters
        model.tenants = None if config.tenants is None else frozenset(config.tenants)
        model.role_control = self._role_control(config, model.engines, model.metrics)
        if old is not None:
            old.prompts.close()

    def _listen_to(self, model: ServedModel) -> None:
        check = partial(self._check_vocab, model)
        model.engines.listen(ReplicaListener(check, model.metrics.on_frame))

    def _check_vocab(self, model: ServedModel, ready: Ready) -> None:
        if ready.version != model.weights:
            return  # whoever updates the model checks it
        try:
            model.tokenizer.check_vocab(ready.vocab_size)
        except TokenizerError as error:
            log.error("tokenizer_mismatch model=%s %s", model.name, error)
            model.engines.close()
            self._fail(error)

    def _fail(self, error: FirelaneError) -> None:
        if self._on_fatal is not None:
            self._on_fatal(error)

    def _replacements(self) -> dict[str, float]:
        """By kind of process. Children of engines are counted once, by the owner of a server's processes."""
        total = Counter(self._replaced.counts)
        for model in self.services.models if self._share.relay is None else ():
            total.update(model.engines.figures.children.replaced)
        return dict(total)

    async def start(self, sockets: Sockets | None = None) -> None:
        """Listen, on `sockets` where there are any (as `release` gives them). Sets `port`. Raises
        AddressInUseError when the port is taken, UsageError on a wrong address.
        """
        config, given = self._config, sockets or {}
        try:
            await self._listener.start(config.host, config.port, given.get(HTTP, ()))
        except OSError as error:
            raise listen_error(error, config.host, config.port, "--port") from error
        self.port = self._listener.port
        await self.start_inside(given.get(METRICS, ()))
        log.debug("listening host=%s port=%d tls=%s", config.host, self.port, self._tls is not None)

    async def start_inside(self, metrics: Sequence[socket.socket] = ()) -> None:
        """The parts of a server beside its port. metrics: sockets of that port. Raises as `start`."""
        if self._share.relay is None:
            await self._start_metrics(metrics)
            await self._start_batches()
        self.app.spawn(self.services.models.start_templates())
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    async def answer_relayed(self, sock: socket.socket) -> None:
        """Serve a connection of another process of this server, which a request comes over. Owns it."""
        await self._loop.connect_accepted_socket(partial(HttpConnection, self._relayed), sock)

    async def _start_batches(self) -> None:
        runner = BatchRunner(
            self.services.models, self.app.dispatch, self.services.tenants.named, time.monotonic
        )
        await self.services.batches.start(runner)

    async def _start_metrics(self, sockets: Sequence[socket.socket]) -> None:
        config = self._config
        if config.metrics_port is None:
            for sock in sockets:
                sock.close()
            return
        try:
            await self.metrics.start(config.host, config.metrics_port, sockets)
        except OSError as error:
            raise listen_error(error, config.host, config.metrics_port, "--metrics-port") from error

    def _sweep(self) -> None:
        self._connections.sweep()
        self._relayed.sweep()
        self.metrics.sweep()
        self.services.streams.logs.sweep()
        if self._tls is not None:
            self._tls.reload_if_changed()
        for model in self.services.models:
            model.admission.sweep(time.monotonic())
            model.role_control.sweep(time.monotonic())
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def reload(self) -> None:
        """Read keys, prices and certificates again. A file that cannot be used leaves the old ones, with a
        line in the log; requests in flight go on as they are.
        """
        self.services.tenants.reload()
        self.services.usage.prices.reload()
        if self._tls is not None:
            self._tls.reload()

    @property
    def in_flight(self) -> int:
        """Sequences admitted by this process and not ended."""
        return sum(model.admission.own_held for model in self.services.models)

    async def release(self) -> Sockets:
        """Copies of the sockets that it listens on, for a successor. It accepts nothing from them any more,
        and keeps files and batches no longer; what it has accepted goes on."""
        sockets = {HTTP: self._listener.copies(), METRICS: self.metrics.listener.copies()}
        self._listener.close()
        self.metrics.listener.close()
        await self.services.batches.close()
        return sockets

    async def resume(self, sockets: Sockets) -> None:
        """Listen again on what `release` gave: there is no successor."""
        await self._listener.start(self._config.host, self.port, sockets[HTTP])
        await self.start_inside(sockets.get(METRICS, ()))

    async def retire(self) -> None:
        """Return when nothing is in flight, and no connection open, after `release`. A connection is answered
        once more, and closed when it has been idle for RETIRED_IDLE_S."""
        self._connections.retire(RETIRED_IDLE_S)
        while self.in_flight or len(self._connections) or len(self._relayed):
            await asyncio.sleep(POLL_S)

    async def drain(self, timeout_s: float) -> bool:
        """Accept nothing new and let what is in flight end and reach its clients, for at most `timeout_s`.
        True when all ended. Batches pause.
        """
        self._admit_no_more()
        await self.services.batches.pause()
        self._listener.close()
        self._connections.close_idle()
        await self._settle(timeout_s)
        return not self.in_flight

    def _admit_no_more(self) -> None:
        for model in self.services.models:
            model.admission.draining = True
            model.engines.hurry()

    async def _settle(self, timeout_s: float) -> None:
        deadline_s, streams = self._loop.time() + timeout_s, self.services.streams
        while self.in_flight or self._connections.unsent_bytes or streams.readers:
            if self._loop.time() >= deadline_s:
                return
            await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """End at once: requests in flight fail with 503 or an error event, then the connections close."""
        self._admit_no_more()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._listener.close()
        await self.services.batches.pause()
        await self.app.cancel_tasks()
        self.services.bodies.trimmer.close()
        for model in self.services.models:
            model.engines.close()
            if model.text is not None:
                model.text.prompts.close()
        self._connections.close_idle()
        await asyncio.sleep(POLL_S)  # the last writes leave
        await self._settle(LAST_WRITES_S)
        self._connections.abort_all()
        self._relayed.abort_all()
        self.metrics.close()
        await asyncio.to_thread(self._traces.close)
        await self._listener.wait_closed()
        await self.services.batches.close()


def _origins(config: GatewayConfig) -> OriginPolicy:
    loopback = is_loopback(config.host)
    return origin_policy(config.allow_origins, keyless=config.api_keys is None, loopback=loopback)
