"""The engines of one model on this machine: replicas, each with a supervisor, and their rolling restart."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from firelane.child_process.child import ProcessState
from firelane.engine_config import EngineConfig
from firelane.engine_state import EngineExit, EngineLifecycle, Exited, GaveUp
from firelane.errors import MachineError
from firelane.node.engine_process import StartEngine, start_engine
from firelane.node.memory_groups import NO_GROUPS, EngineGroup
from firelane.node.peer_connections import PeerConnections
from firelane.node.remote_peers import RemotePeers, RemotePeersConfig
from firelane.node.supervisor import BeforeRestart, EngineHealth, EnginePlace, EngineSupervisor

log = logging.getLogger(__name__)
Tell = Callable[[str, Exited | GaveUp], None]
GroupOf = Callable[[str], EngineGroup]
"""Control group of the replica of this name."""
FINISH_S = 5.0
"""Time that the requests of an engine that is replaced may go on there, before they are moved."""
MOVED_TOGETHER = 2
"""Requests that are computed anew at the same time: the others go on where they are meanwhile."""
POLL_S = 0.01
CALM_S = 2.0
"""Time that the next engine's load may wait for the others to compute again what they got from the last."""
LAST_FRAMES_S = 0.5
"""Time that the last frame of an engine whose process has ended may take."""
LATE_S = 2.0
"""Time without requests after which renewed engines end: some may be just being read."""
STOP_S = 2.0
"""Time that an engine may take to end after its connection, before it gets SIGTERM."""


class Link(Protocol):
    """The gateway's end of one engine."""

    lifecycle: EngineLifecycle
    process: ProcessState

    @property
    def in_flight(self) -> int: ...
    async def attach(self, sock: socket.socket) -> None: ...


LinkT = TypeVar("LinkT", bound=Link)


class EngineRegistry(Protocol[LinkT]):
    """The gateway's view of all engines."""

    @property
    def serves(self) -> bool: ...
    @property
    def unheard(self) -> int:
        """Requests that were moved and have no token since."""
        ...

    def add(self, name: str) -> LinkT:
        """The link of one more engine."""
        ...

    def share(self, link: LinkT, acceptor: socket.socket) -> None:
        """A new engine of the place of this link. acceptor: the socket over which other gateways'
        connections go there; owned from now on."""
        ...

    def remove(self, link: LinkT) -> None: ...
    def retire(self, link: LinkT, reason: str) -> None: ...
    def move(self, link: LinkT, count: int) -> int: ...
    def is_held(self, link: LinkT) -> bool:
        """Other gateways have requests there."""
        ...


class Replica(Generic[LinkT]):
    """One engine's place. The first engine's sockets come before there is a link."""

    def __init__(
        self,
        name: str,
        config: EngineConfig,
        tell: Tell,
        before_restart: BeforeRestart,
        join_peers: Callable[[], socket.socket] | None,
        *,
        has_acceptor: bool = False,
        group: EngineGroup = NO_GROUPS,
        start: StartEngine = start_engine,
    ) -> None:
        self.name, self.config = name, config
        self.link: LinkT | None = None
        self._engines: EngineRegistry[LinkT] | None = None
        self._given_up: EngineExit | None = None
        self._tell = tell
        self._early: socket.socket | None = None
        self._early_acceptor: socket.socket | None = None
        self.supervisor = EngineSupervisor(
            config,
            self._take_socket,
            on_exit=lambda ended: tell(name, Exited(ended)),
            on_given_up=self._on_given_up,
            before_restart=before_restart,
            on_acceptor=self._take_acceptor if has_acceptor else None,
            join_peers=join_peers,
            place=EnginePlace(group, start),
            health=self._health,
        )

    async def connect(self, link: LinkT, engines: EngineRegistry[LinkT]) -> None:
        self.link, self._engines = link, engines
        link.process = self.supervisor
        acceptor, self._early_acceptor = self._early_acceptor, None
        if acceptor is not None:
            self._take_acceptor(acceptor)
        early, self._early = self._early, None
        if early is not None:
            await link.attach(early)
        self._tell_given_up()

    async def start(self) -> None:
        """Raises MachineError where the system makes no process."""
        self._given_up = None
        await self.supervisor.start()

    async def stop(self) -> None:
        """An engine that serves ends by itself when its connection does; one that still loads would not hear
        of it."""
        serves = self.link is not None and self.link.lifecycle.is_ready
        await self.supervisor.stop(STOP_S if serves else 0.0)

    async def _take_socket(self, sock: socket.socket) -> None:
        if self.link is None:
            self._early = sock
        else:
            await self.link.attach(sock)

    def _take_acceptor(self, acceptor: socket.socket) -> None:
        if self.link is None or self._engines is None:
            self._early_acceptor = acceptor
        else:
            self._engines.share(self.link, acceptor)

    def _health(self) -> EngineHealth:
        if self.link is None:
            return EngineHealth()
        return EngineHealth(self.link.lifecycle.ready_s, self.link.lifecycle.has_served)

    @property
    def has_given_up(self) -> bool:
        return self._given_up is not None

    def _on_given_up(self, ended: EngineExit) -> None:
        self._given_up = ended
        self._tell_given_up()

    def _tell_given_up(self) -> None:
        """Only once there is a link: the last frame that is read through it says why the engine ended. The
        process may be gone before that frame has been read."""
        if self._given_up is not None and self.link is not None:
            asyncio.get_running_loop().call_later(LAST_FRAMES_S, self._explain, self._given_up, self.link)

    def _explain(self, ended: EngineExit, link: LinkT) -> None:
        failed = link.lifecycle.engine.failed
        if failed is not None:
            self._tell(self.name, GaveUp(failed.message, failed.exit_code))
        else:
            words = f"{ended}; its last lines are above"
            self._tell(self.name, GaveUp(words, ended.exit_code, was_killed=ended.return_code < 0))


class Fleet(Generic[LinkT]):
    """Owns the replicas. Started first, connected when there is a gateway. is_shared: engines serve several
    gateways."""

    def __init__(
        self,
        configs: Sequence[EngineConfig],
        tell: Tell,
        *,
        is_shared: bool = False,
        group_of: GroupOf = lambda _: NO_GROUPS,
        remote: RemotePeersConfig | None = None,
        shares_pages: bool = False,
        start: StartEngine = start_engine,
    ) -> None:
        """tell: gets what becomes of the processes, by the name of the replica. remote: how pages travel
        to and from engines of other servers; None: they do not. shares_pages: these engines have pages
        from each other; those with roles do anyway. start: makes each process."""
        self._tell, self._group_of, self._remote, self._start = tell, group_of, remote, start
        self._engines: EngineRegistry[LinkT] | None = None
        self._restarting, self._is_shared = False, is_shared
        self._has_peers = shares_pages or any(config.role != "both" for config in configs)
        self._peer_connections = PeerConnections(connects=self._has_peers)
        self._leaving: list[Replica[LinkT]] = []
        """Replicas whose place others have; they end with their requests."""
        self.replicas: list[Replica[LinkT]] = [
            self._replica(str(i), config) for i, config in enumerate(configs)
        ]

    def _replica(self, name: str, config: EngineConfig) -> Replica[LinkT]:
        return Replica(
            name,
            config,
            self._tell,
            self._calm,
            partial(self._peer_connections.join, int(name)) if self._has_peers or self._remote else None,
            has_acceptor=self._is_shared,
            group=self._group_of(name),
            start=self._start,
        )

    def configure(self, change: Callable[[EngineConfig], EngineConfig]) -> None:
        """Have engines that start from now on start with a changed configuration."""
        for replica in self.replicas:
            replica.config = change(replica.config)
            replica.supervisor.configure(replica.config)

    async def start(self) -> None:
        """Also after `stop`. Raises MachineError where the system makes no process, and UsageError where the
        address of `remote` cannot be listened on."""
        if self._remote is not None:
            self._peer_connections.reach(RemotePeers(self._remote, len(self.replicas)))
        for replica in self.replicas:
            await replica.start()

    async def connect(self, engines: EngineRegistry[LinkT]) -> None:
        self._engines = engines
        for replica in self.replicas:
            await replica.connect(engines.add(replica.name), engines)

    async def stop(self) -> None:
        await asyncio.gather(*(replica.stop() for replica in (*self.replicas, *self._leaving)))
        self._peer_connections.close()

    async def restart(self) -> None:
        """Replace one engine after the other: the new one is ready before the old one is drained. Where a new
        one does not become ready, the old ones stay."""
        if self._engines is None or self._restarting:
            return
        self._restarting = True
        try:
            for place in range(len(self.replicas)):
                if not await self._replace(place, self._engines):
                    log.error("restart_given_up replica=%s: the engines that serve stay", place)
                    return
            log.info("restart_complete replicas=%d", len(self.replicas))
        finally:
            self._restarting = False

    async def renew(
        self, change: Callable[[EngineConfig], EngineConfig], switch: Callable[[], None], within_s: float
    ) -> str:
        """Start engines with changed configurations beside those that there are, and have them take their
        places. switch: called once all serve; new requests go there from then on. Returns the reason why they
        do not serve within their time, with all as it was; "" where they do. The others stay until
        `end_leaving`."""
        assert self._engines is not None, "engines without a gateway have no requests"
        new: list[Replica[LinkT]] = []
        try:
            async with asyncio.timeout(within_s):
                for old in list(self.replicas):
                    one = self._replica(old.name, change(old.config))
                    if reason := await self._bring_up(one, self._engines):
                        return reason
                    new.append(one)
            switch()
            self._leaving, self.replicas, new = self.replicas, new, []
        except TimeoutError:
            return f"it is not ready after {within_s:g} s"
        finally:
            await self._end(new)
        return ""

    @property
    def is_leaving(self) -> bool:
        """Whether engines that were renewed still have requests."""
        return bool(self._leaving)

    async def end_leaving(self) -> None:
        """Return when the requests of renewed engines have ended, and these with them."""
        for old in self._leaving:
            quiet_s = 0.0
            while old.link is not None and quiet_s < LATE_S:  # for those that are just being read
                await asyncio.sleep(POLL_S)
                quiet_s = 0.0 if old.link.in_flight else quiet_s + POLL_S
        leaving, self._leaving = self._leaving, []
        await self._end(leaving)

    async def _end(self, replicas: Sequence[Replica[LinkT]]) -> None:
        for replica in replicas:
            if replica.link is not None and self._engines is not None:
                self._engines.remove(replica.link)
            await replica.supervisor.stop(STOP_S)

    async def _calm(self) -> None:
        """While others compute again what an engine has lost, its successor does not take their processor: a
        load would lengthen the pause of all these requests."""
        ends_at_s = asyncio.get_running_loop().time() + CALM_S
        await asyncio.sleep(POLL_S)  # its requests are about to be moved
        while (engines := self._engines) is not None and engines.serves and engines.unheard:
            if asyncio.get_running_loop().time() >= ends_at_s:
                return
            await asyncio.sleep(POLL_S)

    async def _replace(self, place: int, engines: EngineRegistry[LinkT]) -> bool:
        old = self.replicas[place]
        new = self._replica(old.name, old.config)
        if await self._bring_up(new, engines):
            return False
        self.replicas[place] = new
        if old.link is not None:
            engines.retire(old.link, "the engine is replaced")
            await self._empty(old.link, engines)
            engines.remove(old.link)
        await old.supervisor.stop(STOP_S)
        return True

    async def _bring_up(self, new: Replica[LinkT], engines: EngineRegistry[LinkT]) -> str:
        """Start a further engine. Returns the reason why it does not become ready, with nothing left of it;
        "" where it does."""
        link = engines.add(new.name)
        self.replicas.append(new)
        try:
            await new.supervisor.start()
            await new.connect(link, engines)
            while not (link.lifecycle.is_ready or new.has_given_up):
                await asyncio.sleep(POLL_S)
        except MachineError as error:
            log.error("engine_not_started error=%r", str(error))
        finally:
            self.replicas.remove(new)
            if not link.lifecycle.is_ready:
                engines.remove(link)
                await new.supervisor.stop(0.0)
        failed = link.lifecycle.engine.failed
        return "" if link.lifecycle.is_ready else "its engine ended" if failed is None else failed.message

    async def _empty(self, link: LinkT, engines: EngineRegistry[LinkT]) -> None:
        """Requests end, or are moved a few at a time, each time when those before have a token again."""
        loop = asyncio.get_running_loop()
        finish_at_s = loop.time() + FINISH_S
        while link.in_flight or engines.is_held(link):
            if loop.time() >= finish_at_s and not engines.unheard:
                engines.move(link, MOVED_TOGETHER)
            await asyncio.sleep(POLL_S)
