"""One model of a server: what was asked for, its engines' processes, their links to the gateway, and what its
node has to know of them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from firelane.engine_state import Assigned, EngineEvent, Exited, LinkState
from firelane.node.engine_process import StartEngine, start_engine
from firelane.node.fleet import Fleet, GroupOf
from firelane.node.memory_groups import NO_GROUPS
from firelane.server.engine_sharing import NOT_SHARED, EngineSharing
from firelane.server.model_adapters import Loras, ModelAdapters
from firelane.wire.cache_events import CacheEvents
from firelane.wire.frames import Ready

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from firelane.cluster.remote_fleet import RemoteFleet
    from firelane.gateway.engines.link.link import EngineLink
    from firelane.gateway.engines.replicas import ReplicaSet
    from firelane.gateway.kv_events.feed import EventFeed
    from firelane.gateway.requests.models import ServedModel
    from firelane.server.engine_shares import EngineOptions
    from firelane.server.model_spec import ModelSpec

    Tell = Callable[[str, EngineEvent], None]

log = logging.getLogger(__name__)


class Model:
    """One model while its server lives, as its node, its fleet and its gateway see it.

    The code of the gateway is loaded when the first link is wanted: processes start before that.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tell: Tell,
        sharing: EngineSharing = NOT_SHARED,
        group_of: GroupOf = lambda _: NO_GROUPS,
        start: StartEngine = start_engine,
    ) -> None:
        """tell: gets each event of the engines, with the name of the model. start: makes their processes."""
        self.spec, self._start_engine = spec, start
        self._group_of, self._sharing, self._tell = group_of, sharing, tell
        self.fleet = self._fleet()
        """The processes of the engines, or the hosts that have them."""
        self.adapters = self._adapters()
        self.replicas: ReplicaSet | None = None
        """The engines as the gateway of this process sees them, once there is one."""
        self.served: ServedModel | None = None
        """The model in the gateway of this process: its text, its admission, its metrics."""
        self.has_served = False
        self._engine_bytes = 0
        self._places: dict[EngineLink, int] = {}
        self._feed: EventFeed | None = None
        self._turn = asyncio.Lock()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def is_shared(self) -> bool:
        """Whether other gateway processes send requests to its engines, too."""
        return self._sharing.is_shared

    @property
    def options(self) -> EngineOptions:
        return self.spec.engines

    def make_replicas(self) -> ReplicaSet:
        """Made once: those of a model that was away are there already. Raises UsageError where cache events
        cannot be published."""
        if self.replicas is None:
            from firelane.gateway.engines.recovery.ejection import OutlierEjection
            from firelane.gateway.engines.replicas import ReplicaSet
            from firelane.gateway.kv_events.feed import make_feed

            self._feed = make_feed(self.options.kv_events)
            self.replicas = ReplicaSet(ejection=OutlierEjection())
            self._set_up(self.replicas)
        return self.replicas

    def _set_up(self, replicas: ReplicaSet) -> None:
        from firelane.gateway.engines.recovery.recovery import NoRecovery, Resume
        from firelane.gateway.engines.routing.routing import Router

        gateway = self.spec.gateway
        recovery = Resume() if gateway.recovery else NoRecovery()
        replicas.set_up(recovery, Router.of(gateway.routing, shares_pages=gateway.shares_pages))

    async def connect(self) -> None:
        """Give the engines their links to the gateway."""
        self.make_replicas()
        await self.fleet.connect(self)

    def _fleet(self) -> Fleet[EngineLink] | RemoteFleet[EngineLink]:
        if self.options.remote is not None:
            from firelane.server.remote_engines import remote_fleet

            return remote_fleet(self.options.remote, self.options.engine)
        return Fleet(
            self.spec.engine_configs(),
            self._on_event,
            is_shared=self._sharing.is_shared,
            group_of=self._group_of,
            remote=self.options.remote_peers,
            shares_pages=self.spec.gateway.shares_pages,
            start=self._start_engine,
        )

    def _adapters(self) -> ModelAdapters:
        is_remote = self.options.remote is not None
        return ModelAdapters(
            self.options.engine, self.make_replicas, self._serve_adapters, is_remote=is_remote
        )

    def _serve_adapters(self, loras: Loras) -> None:
        """Places stay as many as they were: the program depends on it."""
        if isinstance(self.fleet, Fleet):
            engine = self.options.engine
            places = max(engine.max_loras, len(engine.loras))
            self.fleet.configure(
                lambda config: msgspec.structs.replace(config, loras=tuple(loras.items()), max_loras=places)
            )

    async def update(self, spec: ModelSpec, switch: Callable[[], None], within_s: float) -> str:
        """Other files, while it serves: as Fleet.renew."""
        assert isinstance(self.fleet, Fleet), "engines on other hosts are started there"
        own = spec.engines.engine
        reason = await self.fleet.renew(
            lambda config: msgspec.structs.replace(
                config, model_dir=own.model_dir, tokenizer_dir=own.tokenizer_dir, version=own.version
            ),
            switch,
            within_s,
        )
        if not reason:
            self.spec = spec
        return reason

    # ---- as its node sees it

    @property
    def _links(self) -> list[EngineLink]:
        return [] if self.replicas is None else self.replicas.links

    @property
    def serves(self) -> bool:
        return self.replicas is not None and bool(self.replicas.serving)

    @property
    def is_busy(self) -> bool:
        if self.replicas is None or self.served is None:
            return False
        return self.replicas.in_flight > 0 or self.served.admission.is_busy

    @property
    def can_sleep(self) -> bool:
        serving = self.replicas.serving if self.replicas is not None else []
        is_own = self.options.remote is None
        return (
            is_own
            and bool(serving)
            and all(link.ready is not None and link.ready.can_sleep for link in serving)
        )

    @property
    def ready_bytes(self) -> int:
        """Bytes of all engines, as many for each as the one that was ready last has told: others may be on
        their way."""
        return self._engine_bytes * (
            self.options.replicas if self.options.remote is None else len(self._links)
        )

    @property
    def standby_bytes(self) -> int:
        asleep = (link.engine.asleep for link in self._links)
        return sum(one.resident_bytes for one in asleep if one is not None)

    @property
    def are_asleep(self) -> bool:
        """All are in standby. One that has ended is not waited for."""
        gone = LinkState.DEAD
        return not self.serves and all(
            link.engine.asleep is not None or link.state is gone for link in self._links
        )

    @property
    def are_awake(self) -> bool:
        """None is in standby any more, and one at least serves."""
        return self.serves and not any(link.state is LinkState.STANDBY for link in self._links)

    async def start(self) -> None:
        async with self._turn:
            await self.fleet.start()

    async def become(self, spec: ModelSpec) -> None:
        """Take another description. Where its engines differ, those that it says take their places, and there
        is none when this is called."""
        before, self.spec = self.spec, spec
        if spec.engines_differ(before):
            await self._replace_engines()

    async def come_back(self, spec: ModelSpec) -> None:
        """Be served again, with the metrics that there were."""
        self.spec = spec
        await self._replace_engines()

    async def _replace_engines(self) -> None:
        async with self._turn:
            self._engine_bytes = 0
            for link in list(self._links):
                self.remove(link)
            self.fleet, self.adapters = self._fleet(), self._adapters()
            if self.replicas is not None:
                self._set_up(self.replicas)
                await self.fleet.connect(self)

    async def stop(self) -> None:
        async with self._turn:
            if self.replicas is not None:
                self.replicas.drain()
            await self.fleet.stop()

    def close(self) -> None:
        """After the last stop; idempotent. All events of the engines' caches have been told then."""
        if self._feed is not None:
            self._feed.close()

    def sleep(self) -> None:
        """All engines that serve go to standby."""
        for link in self._links:
            link.commands.sleep()

    def wake(self) -> None:
        for link in self._links:
            link.commands.wake()

    # ---- as its fleet sees it

    @property
    def unheard(self) -> int:
        return 0 if self.replicas is None else self.replicas.dispatcher.parked.unheard

    def add(self, name: str) -> EngineLink:
        """The link of one more engine."""
        from firelane.gateway.engines.link.link import EngineLink
        from firelane.gateway.engines.link.watch import Deadlines, Heartbeat

        options, replicas = self.options, self.make_replicas()
        deadlines = Deadlines(
            silence_s=options.engine_timeout_s, step_s=options.step_deadline_s or Deadlines.step_s
        )
        is_shared = self._sharing.is_shared or options.remote is not None
        link = EngineLink(name=name, watch=Heartbeat(deadlines), tell=self._take, is_shared=is_shared)
        self._places[link] = self._sharing.place()
        if self._feed is not None:
            self._feed.expect(link)
        replicas.add(link)
        return link

    def share(self, link: EngineLink, acceptor: socket.socket) -> None:
        self._sharing.add(self._places[link], self.name, link.name, acceptor)

    def remove(self, link: EngineLink) -> None:
        self._sharing.remove(self._places.pop(link))
        self.make_replicas().remove(link)

    def retire(self, link: EngineLink, reason: str) -> None:
        self._sharing.retire(self._places[link])
        self.make_replicas().retire(link, reason)

    def move(self, link: EngineLink, count: int) -> int:
        return self.make_replicas().move(link, count)

    def is_held(self, link: EngineLink) -> bool:
        return self._sharing.is_held(self._places[link])

    # ---- what the engines tell

    def _take(self, link: EngineLink, event: EngineEvent | CacheEvents) -> None:
        if isinstance(event, CacheEvents):
            if self._feed is not None:
                self._feed.publish(link, event)
            return
        if isinstance(event, Ready):
            self.adapters.on_ready(link, event)
        if isinstance(event, Assigned):
            self._sharing.assign(self._places[link], event.role)
        self._on_event(link.name, event)

    def _on_event(self, replica: str, event: EngineEvent) -> None:
        if isinstance(event, Ready):
            self._on_ready(replica, event)
        elif isinstance(event, Exited) and self.has_served:
            log.warning(
                "engine_exit model=%s replica=%s %s lived_s=%.1f; another one is started",
                *(self.name, replica, event.ended, event.ended.lived_s),
            )
        self._tell(self.name, event)

    def _on_ready(self, replica: str, ready: Ready) -> None:
        """The first one is told by the start's lines."""
        level = logging.INFO if self.has_served or self.options.engine.log_format == "json" else logging.DEBUG
        self.has_served = True
        self._engine_bytes = ready.weights_bytes + ready.kv_bytes + ready.states_bytes
        log.log(
            level,
            "engine_ready model=%s replica=%s pid=%d max_model_len=%d max_num_seqs=%d kv_tokens=%d "
            "weights_bytes=%d load_s=%.2f",
            *(self.name, replica, ready.pid, ready.max_model_len, ready.max_num_seqs),
            *(ready.num_blocks * ready.block_size, ready.weights_bytes, ready.load_s),
        )
