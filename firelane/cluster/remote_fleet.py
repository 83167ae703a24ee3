"""The engines of one model on other hosts: found by name, connected, and let go when they vanish."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Generic, Protocol, TypeVar

from firelane.cluster.addresses import NameDiscovery, Place
from firelane.cluster.remote_engine import BackOff, Dial, RemoteEngine, RemoteLink

log = logging.getLogger(__name__)
LOOK_S = 5.0
"""Between two looks at what engines there are."""


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
