"""The engines of one model on other hosts: found by name, connected, and let go when they vanish."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from firelane.cluster.addresses import NameDiscovery, Place
from firelane.cluster.dial import Dialed
from firelane.engine_state import EngineLifecycle, Unreachable
from firelane.errors import PeerLostError

log = logging.getLogger(__name__)
LOOK_S = 5.0
"""Between two looks at what engines there are."""


Dial = Callable[[Place], Awaitable[Dialed]]


class RemoteLink(Protocol):
    """The gateway's end of one engine."""

    name: str
    lifecycle: EngineLifecycle

    def adopt(self, stream: asyncio.Transport, number: int, head: bytes) -> Awaitable[str]:
        """Take a connection. Returns the reason of its end when it has ended."""
        ...


@dataclass(frozen=True, kw_only=True)
class BackOff:
    """Waits between two connections of one engine: they double from first_s to most_s, and begin anew after a
    connection that lasted sound_s. A host that refuses for good is asked each most_s: it may be
    replaced."""

    first_s: float = 0.2
    most_s: float = 10.0
    sound_s: float = 5.0


class RemoteEngine:
    """Owns the making of connections; the link owns the connection itself. wanted: it is to be connected
    again when its connection ends; on_gone: called when it is not, and has ended."""

    def __init__(
        self,
        place: Place,
        link: RemoteLink,
        dial: Dial,
        on_gone: Callable[[RemoteEngine], None],
        back_off: BackOff | None = None,
    ) -> None:
        self.place, self.link, self.wanted = place, link, True
        self._dial, self._on_gone = dial, on_gone
        self._back_off = back_off or BackOff()
        self._told = ""
        self._task = asyncio.ensure_future(self._keep())

    async def close(self) -> None:
        """Connect no more; the link is closed by its owner."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _keep(self) -> None:
        back_off, loop = self._back_off, asyncio.get_running_loop()
        delay_s = back_off.first_s
        while self.wanted:
            began_s = loop.time()
            try:
                dialed = await self._dial(self.place)
            except PeerLostError as error:
                self._note(str(error))
                delay_s = delay_s if error.is_passing else back_off.most_s
            else:
                self._note_end(await self.link.adopt(dialed.transport, dialed.number, bytes(dialed.head)))
                if loop.time() - began_s > back_off.sound_s:
                    delay_s = back_off.first_s
            if self.wanted:
                await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, back_off.most_s)
        self._on_gone(self)

    def _note_end(self, reason: str) -> None:
        if reason != self._told:
            self._told = reason
            log.warning("engine_lost address=%s reason=%r", self.place, reason)

    def _note(self, reason: str) -> None:
        """Each reason once, however often it comes."""
        self.link.lifecycle.change(Unreachable(f"engine at {self.place}: {reason}"))
        if reason != self._told:
            self._told = reason
            log.warning("engine_not_reached address=%s reason=%r; it is tried again", self.place, reason)


LinkT = TypeVar("LinkT", bound=RemoteLink)


class RemoteEngines(Protocol[LinkT]):
    """The gateway's view of all engines."""

    def add(self, name: str) -> LinkT:
        """The link of one more engine, which other gateways may use, too."""
        ...

    def remove(self, link: LinkT) -> None: ...


class RemoteFleet(Generic[LinkT]):
    """Keeps a link to each engine that the discovery tells of. One that it tells of no more stays for as long
    as its connection does: a name server may err, and a host that is shut down ends its connections itself,
    when the requests there have ended or gone on elsewhere. The engines' processes belong to their hosts."""

    def __init__(self, discovery: NameDiscovery, dial: Dial, back_off: BackOff | None = None) -> None:
        self._discovery, self._dial = discovery, dial
        self._back_off = back_off
        self._engines: RemoteEngines[LinkT] | None = None
        self._kept: dict[Place, tuple[RemoteEngine, LinkT]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._told = ""

    async def start(self) -> None:
        """Nothing is there to be started."""

    async def connect(self, engines: RemoteEngines[LinkT]) -> None:
        self._engines = engines
        self._looking = asyncio.ensure_future(self._look())

    async def restart(self) -> None:
        log.warning("engines on other hosts are not restarted from here: restart them there")

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        for engine, _ in list(self._kept.values()):
            await engine.close()
        self._kept.clear()

    def is_wanted(self, place: Place) -> bool:
        """Whether the discovery tells of it."""
        return place in self._kept and self._kept[place][0].wanted

    async def _look(self) -> None:
        while True:
            try:
                self._keep(await self._discovery.find())
                self._told = ""
            except OSError as error:
                if str(error) != self._told:
                    self._told = str(error)
                    log.warning("engines_not_found error=%r; those known stay", str(error))
            await asyncio.sleep(LOOK_S)

    def _keep(self, places: list[Place]) -> None:
        assert self._engines is not None
        for place, (engine, _) in self._kept.items():
            engine.wanted = place in places
        for place in places:
            if place not in self._kept:
                self._add(place, self._engines)

    def _add(self, place: Place, engines: RemoteEngines[LinkT]) -> None:
        link = engines.add(str(place))
        engine = RemoteEngine(place, link, self._dial, self._on_gone, self._back_off)
        self._kept[place] = engine, link
        log.info("engine_found address=%s name=%s", place, place.name)

    def _on_gone(self, engine: RemoteEngine) -> None:
        _, link = self._kept.pop(engine.place)
        log.info("engine_gone address=%s", engine.place)
        if self._engines is not None:
            self._engines.remove(link)
