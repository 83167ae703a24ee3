"""All gateway processes of a server, as their owner sees them: started, given their sockets and engines,
started again when they die, ended.

The owner keeps the listening sockets and the acceptors of the engines, and has a gateway of its own, which
accepts no connection: it answers what the others relay, as it has the state that cannot be shared.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from firelane.child_process import Child, Replacements
from firelane.child_process.child import no_process
from firelane.errors import FirelaneError
from firelane.gateway.config import GatewayConfig
from firelane.gateway.http.listener import listen_error
from firelane.gateway.processes.config_text import to_text
from firelane.gateway.processes.control import (
    Collect,
    ControlChannel,
    Emptied,
    Fatal,
    Figures,
    Listen,
    Listening,
    Message,
    Relay,
    Reload,
    Setup,
    Stop,
    ToGateway,
    Used,
    Want,
)
from firelane.gateway.processes.gateway_child import GatewayChild
from firelane.gateway.processes.places import EnginePlaces
from firelane.gateway.processes.served import ModelFollower
from firelane.gateway.server import HTTP, METRICS, Gateway, Sockets
from firelane.gateway.share import GatewayShare
from firelane.gateway.tenants.counts import SharedCounts
from firelane.link.listening import listening_sockets, share_out

KIND = "gateway"
REFRESH_S = 1.0
END_S = 2.0
"""For a process to end by itself beyond the time that its requests have."""
YOUNG_S = 1.0
"""A process that lives shorter was of no use: the next one comes after a pause."""
PAUSE_S = 1.0
MOST_YOUNG = 5
"""Deaths in a row of such, after which the server ends."""
Start = Callable[[int], tuple[Child, socket.socket]]
"""Starts a process at a place; returns it and this end of its connection. Raises OSError."""


class GatewayPool:
    """Owns the processes, the listening sockets and what is counted together. All methods belong to one
    event loop."""

    def __init__(
        self,
        config: GatewayConfig,
        start: Start,
        on_fatal: Callable[[FirelaneError], None],
    ) -> None:
        self.counts = SharedCounts.make(config.gateways + 1)
        self.port = config.port
        self._config = config
        self._start, self._on_fatal = start, on_fatal
        self._created = int(time.time())
        self._processes: dict[int, GatewayChild] = {}
        self.engines = EnginePlaces(self._running)
        self.models = ModelFollower(self._running, config.models)
        self._sockets: list[socket.socket] = []
        self._gateway: Gateway | None = None
        self._replaced = Replacements()
        self._next_number = 1
        self._young = self._turn = 0
        self._ending = False
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- processes

    def launch(self) -> None:
        """Start all; they wait for engines and sockets. Raises MachineError."""
        for index in range(1, self._config.gateways + 1):
            try:
                self._launch(index)
            except OSError as error:
                raise no_process("a gateway", error) from error

    def _launch(self, index: int) -> None:
        child, ours = self._start(index)
        number, self._next_number = self._next_number, self._next_number + 1
        control = ControlChannel(ours, partial(self._on_message, index), lambda: None)
        process = GatewayChild(index, number, child, control, time.monotonic())
        self._processes[index] = process
        control.send(self._setup(process), [self.counts.fd])
        self.models.tell(process)
        self.engines.connect(process)
        if self._sockets:
            self._give_sockets(process)
        process.watch_silence()
        self._spawn(self._watch(process))

    def _setup(self, process: GatewayChild) -> Setup:
        config, models = self._config, tuple(self.models.configs.values())
        most = -(-config.max_connections // config.gateways)
        return Setup(
            index=process.index,
            number=process.number,
            places=config.gateways + 1,
            config=to_text(replace(config, models=models, max_connections=most)),
            created=self._created,
        )

    async def _watch(self, process: GatewayChild) -> None:
        await process.child.exited()
        process.watch.end()
        ending = process.child.ending()
        process.child.end()
        process.control.read_rest()
        process.control.close()
        process.ended.set()
        process.listening.set()
        process.told.set()
        if self._gateway is not None:
            self._gateway.services.metrics.registry.end(process.index)
        self.counts.give_back(process.index)
        self.engines.ended(process.index)
        if self._ending or self._processes.get(process.index) is not process:
            return
        lived_s = time.monotonic() - process.began_s
        reason = f"gateway {process.index} (pid {process.child.pid}) {ending} after {lived_s:.1f} s"
        self._replaced.note(KIND, reason)
        await self._start_again(process.index, lived_s)

    async def _start_again(self, index: int, lived_s: float) -> None:
        self._young = self._young + 1 if lived_s < YOUNG_S else 0
        if self._young >= MOST_YOUNG:
            self._on_fatal(
                FirelaneError("gateway processes end as soon as they start; their lines are above")
            )
            return
        if self._young:
            await asyncio.sleep(PAUSE_S)
        while not self._ending:
            try:
                self._launch(index)
                self._replaced.works(KIND)
                return
            except OSError as error:
                self._replaced.fails(KIND, f"no process for gateway {index}: {error}")
            await asyncio.sleep(PAUSE_S)

    def _on_message(self, index: int, message: Message, fds: list[int]) -> None:
        process = self._processes[index]
        process.note_message()
        if isinstance(message, Relay):
            self._answer(socket.socket(fileno=fds[0]))
        elif isinstance(message, Listening):
            process.listening.set()
        elif isinstance(message, Emptied):
            self.engines.emptied(message.place, index)
        elif isinstance(message, Want):
            self.models.want(process, message)
        elif isinstance(message, Used):
            self.models.used(message)
        elif isinstance(message, Figures):
            self._on_figures(process, message)
        elif isinstance(message, Fatal):
            error = FirelaneError(message.message)
            error.exit_code = message.exit_code
            self._on_fatal(error)

    def _on_figures(self, process: GatewayChild, message: Figures) -> None:
        if self._gateway is not None:
            self._gateway.services.metrics.registry.absorb(process.index, message.dump)
        if message.turn == self._turn:
            process.told.set()

    async def refresh(self) -> None:
        """Have the metrics of all processes here. One that does not answer in time is counted as it was."""
        processes, self._turn = list(self._processes.values()), self._turn + 1
        for process in processes:
            process.told.clear()
            process.control.send(Collect(self._turn))
        waits = (process.told.wait() for process in processes if not process.ended.is_set())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*waits), REFRESH_S)

    def _answer(self, sock: socket.socket) -> None:
        if self._gateway is None:
            sock.close()
        else:
            sock.setblocking(False)
            self._spawn(self._gateway.answer_relayed(sock))

    def _send(self, message: ToGateway) -> None:
        for process in self._processes.values():
            process.control.send(message)

    # ---- the server

    def share(self) -> GatewayShare:
        """The part of this process."""
        return GatewayShare(counts=self.counts, created=self._created, refresh=self.refresh)

    def front(self, gateway: Gateway) -> GatewayPool:
        """The server of all processes. gateway: that of this one."""
        self._gateway = gateway
        gateway.services.metrics.registry.pids = self._pids
        self._replaced = gateway.services.replaced
        return self

    def _running(self) -> list[GatewayChild]:
        return [process for process in self._processes.values() if not process.ended.is_set()]

    def _pids(self) -> list[int]:
        return [os.getpid(), *(process.child.pid for process in self._running())]

    @property
    def _own(self) -> Gateway:
        assert self._gateway is not None
        return self._gateway

    async def start(self, sockets: Sockets | None = None) -> None:
        """Start all processes; returns when all processes listen."""
        config, given = self._config, sockets or {}
        try:
            own = list(given.get(HTTP, ())) or listening_sockets(config.host, config.port, config.gateways)
        except OSError as error:
            raise listen_error(error, config.host, config.port, "--port") from error
        self._sockets = own
        self.port = own[0].getsockname()[1]
        await self._own.start_inside(given.get(METRICS, ()))
        await self._listen()

    async def _listen(self) -> None:
        processes = list(self._processes.values())
        for process in processes:
            self._give_sockets(process)
        await asyncio.gather(*(process.listening.wait() for process in processes))

    def _give_sockets(self, process: GatewayChild) -> None:
        """None: it accepts no more."""
        shares = share_out(self._sockets, self._config.gateways) if self._sockets else []
        own = shares[process.index - 1] if shares else []
        process.listening.clear()
        process.control.send(Listen(), [sock.fileno() for sock in own])

    @property
    def in_flight(self) -> int:
        """Sequences admitted and not ended, of all processes."""
        return sum(model.admission.held for model in self._own.services.models)

    def reload(self) -> None:
        self._own.reload()
        self._send(Reload())

    async def release(self) -> Sockets:
        """Release the sockets, as Gateway.release does."""
        sockets, self._sockets = self._sockets, []
        await self._listen()
        inner = await self._own.release()
        return {HTTP: sockets, METRICS: inner[METRICS]}

    async def resume(self, sockets: Sockets) -> None:
        self._sockets = list(sockets[HTTP])
        await self._own.start_inside(sockets[METRICS])
        await self._listen()

    async def drain(self, timeout_s: float) -> bool:
        """Drain all processes, as Gateway.drain does."""
        ended = await asyncio.gather(self._end(timeout_s), self._own.drain(timeout_s))
        return ended[1]

    async def retire(self) -> None:
        """Retire all processes, as Gateway.retire does."""
        await asyncio.gather(self._end(None), self._own.retire())

    async def _end(self, timeout_s: float | None) -> None:
        """All processes, which have this time for their requests (None: as much as they take)."""
        self._ending = True
        self._send(Stop(timeout_s))
        ends = asyncio.gather(*(process.ended.wait() for process in self._processes.values()))
        try:
            await asyncio.wait_for(ends, None if timeout_s is None else timeout_s + END_S)
        except TimeoutError:
            self._kill()

    def _kill(self) -> None:
        for process in self._processes.values():
            if not process.ended.is_set():
                process.child.kill()

    async def close(self) -> None:
        """End at once, as Gateway.close; of the gateway, too."""
        await self._end(0.0)
        await asyncio.gather(*(process.ended.wait() for process in self._processes.values()))
        if self._gateway is not None:
            await self._gateway.close()
        for sock in self._sockets:
            sock.close()
        self.models.close()
        self.engines.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
