"""A gateway process: accepts connections on its socket of the port, and has a connection of its own to each
engine. Its owner sends both, and ends it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from firelane.errors import FirelaneError, ProcessDeadError
from firelane.gateway.config import GatewayConfig, ModelConfig
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.recovery.ejection import OutlierEjection
from firelane.gateway.engines.recovery.recovery import NoRecovery, Resume
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.gateway.engines.roles.roles import take_role
from firelane.gateway.engines.routing.routing import Router
from firelane.gateway.http.relay import RequestRelay
from firelane.gateway.processes.config_text import from_text
from firelane.gateway.processes.control import (
    Alive,
    Collect,
    ControlChannel,
    Emptied,
    Engine,
    Fatal,
    Figures,
    Gone,
    Listen,
    Listening,
    Message,
    Reload,
    Remove,
    Resident,
    Retire,
    Role,
    ServeModel,
    Setup,
    Stop,
    WantReply,
)
from firelane.gateway.processes.control import Relay as RelayMessage
from firelane.gateway.processes.remote_residence import RemoteResidence
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.server import HTTP, Gateway
from firelane.gateway.share import GatewayShare
from firelane.gateway.tenants.counts import SharedCounts
from firelane.telemetry.metrics import Dump
from firelane.wire.numbers import first_id

log = logging.getLogger(__name__)
FINISH_S = 5.0
"""Time for requests of an engine that is replaced to go on there, before they are moved."""
MOVED_TOGETHER = 2
POLL_S = 0.01
REPORT_S = 1.0
LAST_WORDS_S = 1.0


class GatewayProcess:
    """All that such a process does, from its owner's first message to the last. on_serving: called when all
    that lives as long as the process has been made."""

    def __init__(self, sock: socket.socket, on_serving: Callable[[], None] = lambda: None) -> None:
        self._messages: asyncio.Queue[tuple[Message, list[int]] | None] = asyncio.Queue()
        self._control = ControlChannel(
            sock,
            lambda message, fds: self._messages.put_nowait((message, fds)),
            lambda: self._messages.put_nowait(None),
        )
        self._on_serving = on_serving
        self._gateway: Gateway | None = None
        self._models: dict[str, ReplicaSet] = {}
        self._served: dict[str, ServedModel] = {}
        self._residences: dict[str, RemoteResidence] = {}
        self._number = 0
        self._links: dict[int, tuple[ReplicaSet, EngineLink]] = {}
        self._is_listening = False
        self._reported: Dump = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Returns the exit code, when the owner says so or has gone."""
        try:
            while (received := await self._messages.get()) is not None:
                message, fds = received
                if isinstance(message, Stop):
                    self._spawn(self._stop(message.timeout_s))
                else:
                    await self._act(message, fds)
        except ProcessDeadError as error:  # somebody has killed its processes: the next one may have them
            log.error("gateway_not_started error=%r", str(error))
            return error.exit_code
        except FirelaneError as error:
            self._control.send(Fatal(str(error), error.exit_code))
            return error.exit_code
        finally:
            if self._timer is not None:
                self._timer.cancel()
            await self._control.flush(LAST_WORDS_S)
            self._control.close()
        return 0

    async def _act(self, message: Message, fds: list[int]) -> None:
        if isinstance(message, Setup):
            self._set_up(message, fds)
        elif isinstance(message, Engine):
            await self._attach(message, socket.socket(fileno=fds[0]))
        elif isinstance(message, Listen):
            await self._listen([socket.socket(fileno=fd) for fd in fds])
        elif isinstance(message, Retire):
            self._retire(message.place)
        elif isinstance(message, Remove):
            self._remove(message.place)
        elif isinstance(message, Role):
            self._assign(message.place, message.role)
        elif isinstance(message, Reload) and self._gateway is not None:
            self._gateway.reload()
        elif isinstance(message, Collect):
            self._report(message.turn)
        else:
            self._act_on_model(message)

    def _act_on_model(self, message: Message) -> None:
        if isinstance(message, ServeModel):
            self._put_model(message)
        elif isinstance(message, Gone):
            self._remove_model(message.model)
        elif isinstance(message, Resident) and message.model in self._residences:
            self._residences[message.model].update(message)
        elif isinstance(message, WantReply) and message.model in self._residences:
            self._residences[message.model].answered(message)

    def _set_up(self, setup: Setup, fds: list[int]) -> None:
        """Raises TokenizerError and UsageError."""
        config = replace(
            from_text(setup.config, GatewayConfig), data_dir=None, metrics_port=None, run_dir=None
        )
        self._number = setup.number
        for model in config.models:
            self._make_engines(model)
        share = GatewayShare(
            counts=SharedCounts(fds[0], setup.index, setup.places),
            relay=RequestRelay(self._connect),
            created=setup.created,
        )
        self._gateway = Gateway(config, list(self._models.values()), self._on_fatal, share=share)
        for model in self._gateway.services.models:
            self._place(model)
        self._report_again()
        self._on_serving()

    def _make_engines(self, model: ModelConfig) -> ReplicaSet:
        made = ReplicaSet(ejection=OutlierEjection(), first_id=first_id(self._number), expects_first=True)
        self._models[model.names[0]] = made
        _set_up(made, model)
        return made

    def _place(self, model: ServedModel) -> None:
        self._served[model.name] = model
        own = RemoteResidence(model.name, model.engines, self._control.send)
        self._residences[model.name] = model.residence = own

    def _put_model(self, message: ServeModel) -> None:
        """A model that was here before keeps its metrics."""
        assert self._gateway is not None
        config = from_text(message.config, ModelConfig)
        name, before = config.names[0], self._served.get(config.names[0])
        if before is not None:
            _set_up(before.engines, config)
        try:
            if before is not None and before in self._gateway.services.models:
                self._gateway.change_model(name, config)
            elif before is not None:
                self._gateway.add_model(config, before.engines, before)
            else:
                engines = self._make_engines(config)
                self._place(self._gateway.add_model(config, engines))
        except FirelaneError as error:
            log.error("model_not_served model=%s error=%r", name, str(error))

    def _remove_model(self, name: str) -> None:
        """Requests that have begun go on."""
        if self._gateway is not None and name in self._served:
            self._gateway.services.models.remove(self._served[name])

    def _report(self, turn: int = 0) -> None:
        """Figures of the metrics, where there are new ones or they are asked for; else a sign of life."""
        if self._gateway is not None:
            dump = self._gateway.services.metrics.registry.dump()
            if turn or dump != self._reported:
                self._control.send(Figures(turn, dump))
                self._reported = dump
                return
        self._control.send(Alive())

    def _report_again(self) -> None:
        """Figures are sent without being asked for: a process may be killed before it is."""
        self._report()
        self._timer = asyncio.get_running_loop().call_later(REPORT_S, self._report_again)

    def _on_fatal(self, error: FirelaneError) -> None:
        self._control.send(Fatal(str(error), error.exit_code))

    def _connect(self) -> socket.socket:
        """A connection to the owner, for one request."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._control.send(RelayMessage(), [theirs.fileno()])
        ours.setblocking(False)
        return ours

    async def _listen(self, sockets: list[socket.socket]) -> None:
        gateway = self._gateway
        assert gateway is not None
        if self._is_listening:
            for sock in (await gateway.release())[HTTP]:
                sock.close()
        if sockets and self._is_listening:
            await gateway.resume({HTTP: sockets})
        elif sockets:
            await gateway.start({HTTP: sockets})
        self._is_listening = bool(sockets)
        self._control.send(Listening())

    async def _attach(self, engine: Engine, sock: socket.socket) -> None:
        if engine.place not in self._links:
            replicas = self._models[engine.model]
            link = EngineLink(name=engine.replica, is_shared=True)
            replicas.add(link)
            self._links[engine.place] = replicas, link
        self._assign(engine.place, engine.role)
        await self._links[engine.place][1].attach(sock)

    def _assign(self, place: int, role: str) -> None:
        """Give a role to a place that there is; the next one tells its role itself."""
        if place in self._links:
            take_role(*self._links[place], role)

    def _retire(self, place: int) -> None:
        if place not in self._links:
            self._control.send(Emptied(place))
            return
        replicas, link = self._links[place]
        replicas.retire(link, "the engine is replaced")
        self._spawn(self._empty(place, replicas, link))

    async def _empty(self, place: int, replicas: ReplicaSet, link: EngineLink) -> None:
        """Requests end, or are moved a few at a time, each time when those before have a token again."""
        loop = asyncio.get_running_loop()
        finish_at_s = loop.time() + FINISH_S
        while link.in_flight:
            if loop.time() >= finish_at_s and not replicas.dispatcher.parked.unheard:
                replicas.move(link, MOVED_TOGETHER)
            await asyncio.sleep(POLL_S)
        self._remove(place)
        self._control.send(Emptied(place))

    def _remove(self, place: int) -> None:
        found = self._links.pop(place, None)
        if found is not None:
            replicas, link = found
            replicas.remove(link)

    async def _stop(self, timeout_s: float | None) -> None:
        gateway = self._gateway
        if gateway is not None:
            await (gateway.retire() if timeout_s is None else gateway.drain(timeout_s))
            log.debug("gateway_ends pid=%d requests=%d", os.getpid(), gateway.in_flight)
            await gateway.close()
            self._report()
        self._messages.put_nowait(None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _set_up(engines: ReplicaSet, model: ModelConfig) -> None:
    recovery = Resume() if model.recovery else NoRecovery()
    engines.set_up(recovery, Router.of(model.routing, shares_pages=model.shares_pages))
