"""Keeps one engine process alive: starts it, hands its socket to the gateway, notices its death, starts it
again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from firelane.child_process import Child
from firelane.child_process.child import no_process
from firelane.engine_config import EngineConfig
from firelane.engine_state import EngineExit
from firelane.node.engine_process import StartEngine, start_engine
from firelane.node.memory_groups import NO_GROUPS, EngineGroup

log = logging.getLogger(__name__)
OnSocket = Callable[[socket.socket], Awaitable[None] | None]
OnAcceptor = Callable[[socket.socket], None]
OnGivenUp = Callable[[EngineExit], None]
BeforeRestart = Callable[[], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """Waits double from first_delay_s to max_delay_s while engines die young. An engine that has served a
    request, or was ready for stable_after_s, counts as sound: after its death the next one starts at once.
    However long a load takes, it proves nothing. One that somebody else has killed or stopped counts
    neither way: the next one starts after first_delay_s. After max_deaths deaths in a row that count the
    supervisor gives up."""

    first_delay_s: float = 0.2
    max_delay_s: float = 10.0
    stable_after_s: float = 5.0
    max_deaths: int = 8

    def delay_s(self, deaths: int) -> float:
        """Before another engine starts, after so many deaths that count."""
        return min(self.first_delay_s * 2.0 ** min(max(deaths - 1, 0), 64), self.max_delay_s)


class EngineHealth(NamedTuple):
    """The proof that an engine works, as far as its clients have seen it."""

    ready_s: float | None = None
    """The moment when it became ready, by time.monotonic; None where it has not."""
    has_answered: bool = False


class EnginePlace(NamedTuple):
    """The control group of each engine process, and the function that starts it."""

    group: EngineGroup = NO_GROUPS
    start: StartEngine = start_engine


class EngineSupervisor:
    """Owns the engine process. All methods belong to one event loop.

    on_socket gets the gateway's end of each new engine's connection and owns it from then on. on_exit hears
    of every death that was not asked for; on_given_up of the last one, when there will be no other engine:
    the first engine ended with an error before it was ready, or too many died in a row. health: of the
    running engine, or of the one that has just ended. before_restart: waited for before another engine is
    started in the place of one that died. on_acceptor: gets, before on_socket, the socket over which
    connections of further gateways are passed to the engine. join_peers: makes the engine's end of the socket
    over which it hears of others (wire.peers). place: of each engine process.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_socket: OnSocket,
        *,
        on_exit: Callable[[EngineExit], None] | None = None,
        on_given_up: OnGivenUp | None = None,
        before_restart: BeforeRestart | None = None,
        on_acceptor: OnAcceptor | None = None,
        policy: RestartPolicy | None = None,
        join_peers: Callable[[], socket.socket] | None = None,
        place: EnginePlace = EnginePlace(),  # noqa: B008 (never changes)
        health: Callable[[], EngineHealth] = EngineHealth,
    ) -> None:
        self._health = health
        self._config, (self._group, self._start_engine) = config, place
        self._join_peers = join_peers
        self._on_socket = on_socket
        self._on_exit = on_exit
        self._on_given_up = on_given_up
        self._before_restart = before_restart
        self._on_acceptor = on_acceptor
        self._policy = policy or RestartPolicy()
        self._child: Child | None = None
        self._ended = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._stopping = False
        self._was_ready = self._hung = False
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The pid of the running engine, or None between two."""
        return self._child.pid if self._child is not None else None

    async def start(self) -> None:
        """Start the first engine, also after a stop; returns when the process exists and on_socket has its
        connection. Raises MachineError where the system makes no process."""
        began_s = time.monotonic()
        self._stopping = self._was_ready = False
        try:
            ours = self._launch()
        except OSError as error:
            raise no_process("the engine", error) from error
        self._watch = asyncio.create_task(self._keep_alive(began_s))
        await self._hand_over(ours)

    def configure(self, config: EngineConfig) -> None:
        """For engines that start from now on."""
        self._config = config

    def kill(self) -> None:
        """End an engine that hangs, with all that it has started; another one follows."""
        if self._child is not None:
            self._hung = not self._child.is_stopped()
            self._child.kill()

    def is_stopped(self) -> bool:
        """Whether the engine is stopped, as ProcessState tells."""
        return self._child is not None and self._child.is_stopped()

    def waited_s(self) -> float:
        """Seconds that the engine has waited, as ProcessState tells."""
        return 0.0 if self._child is None else self._child.waited_s()

    async def restart(self, timeout_s: float = 5.0) -> None:
        """Another engine in the place of this one, which gets `timeout_s` to end by itself."""
        await self.stop(timeout_s)
        await self.start()

    async def stop(self, timeout_s: float = 5.0, *, patience_s: float = 3.0) -> None:
        """End the engine and wait for it: one whose connection closed, or that got a Drain frame, may take
        `timeout_s` to end by itself; then SIGTERM, and SIGKILL `patience_s` later. Give 0 otherwise."""
        self._stopping = True
        for act, wait_s in ((None, timeout_s), (Child.terminate, patience_s), (Child.kill, None)):
            if self._child is None:
                break
            if act is not None:
                act(self._child)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), wait_s)
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch

    def _is_sound(self, health: EngineHealth) -> bool:
        """Whether the engine that ended last was sound."""
        if health.has_answered or health.ready_s is None:
            return health.has_answered
        return time.monotonic() - health.ready_s >= self._policy.stable_after_s

    def _launch(self) -> socket.socket:
        """A new engine process; returns our end of its connection. Raises OSError."""
        sockets, acceptor = dict[str, socket.socket](), None
        with contextlib.ExitStack() as on_error, contextlib.ExitStack() as handed:
            if self._on_acceptor is not None:
                acceptor, inner = socket.socketpair()
                on_error.enter_context(acceptor)
                sockets["acceptor"] = handed.enter_context(inner)
            if self._join_peers is not None:
                sockets["peers"] = handed.enter_context(self._join_peers())
            self._child, ours = self._start_engine(self._config, sockets)
            on_error.pop_all()
        self._group.enter(self._child.pid)
        if self._on_acceptor is not None and acceptor is not None:
            self._on_acceptor(acceptor)
        self._ended.clear()
        self._hung = False
        return ours

    async def _hand_over(self, ours: socket.socket) -> None:
        handled = self._on_socket(ours)
        if handled is not None:
            await handled

    async def _keep_alive(self, began_s: float) -> None:
        deaths = 0
        while True:
            ended = await self._wait_for_exit(began_s)
            if self._stopping:
                return
            if self._on_exit is not None:
                self._on_exit(ended)
            health = self._health()
            self._was_ready = self._was_ready or health.ready_s is not None
            sound, counts = self._is_sound(health), self._hung or ended.is_own_doing
            deaths = (0 if sound else deaths) + counts
            if not self._was_ready or deaths >= self._policy.max_deaths:
                if self._on_given_up is not None:
                    self._on_given_up(ended)
                return
            if self._before_restart is not None:
                await self._before_restart()
            await self._start_again(0.0 if sound else self._policy.delay_s(deaths if counts else 0))
            began_s = time.monotonic()

    async def _start_again(self, delay_s: float) -> None:
        """Launch after a while, which grows for as long as the system has no room for a process."""
        for refusals in itertools.count(1):
            await asyncio.sleep(delay_s)
            try:
                ours = self._launch()
            except OSError as error:
                delay_s = self._policy.delay_s(refusals)
                log.error("engine_not_started error=%r retry_s=%g", str(error), delay_s)
                continue
            self.restarts += 1
            await self._hand_over(ours)
            return

    async def _wait_for_exit(self, began_s: float) -> EngineExit:
        """Waits on the process itself: its socket may close before it has ended, or stay open in a child."""
        child = self._child
        assert child is not None
        await child.exited()
        code = child.end() or 0  # with all that it has started
        self._group.leave()
        self._child = None
        self._ended.set()
        return EngineExit(pid=child.pid, return_code=code, lived_s=time.monotonic() - began_s)
