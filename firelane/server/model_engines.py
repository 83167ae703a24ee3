"""The engines of one model of a server: their processes, their links to the gateway, and what its node has to
know of both.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from firelane.errors import FirelaneError
from firelane.gateway.engines.link.link_state import LinkState
from firelane.node.fleet import Fleet, GroupOf, Link
from firelane.node.memory_groups import NO_GROUPS
from firelane.node.supervisor import EngineExit
from firelane.server.engine_sharing import NOT_SHARED, EngineSharing

if TYPE_CHECKING:
    from firelane.cluster.remote_fleet import RemoteFleet
    from firelane.gateway.engines.link.link import EngineLink
    from firelane.gateway.engines.replicas import ReplicaSet
    from firelane.gateway.requests.models import ServedModel
    from firelane.server.engine_shares import EngineOptions
    from firelane.server.engines import GatewayEngines
    from firelane.wire.frames import Loading, Progress, Ready

log = logging.getLogger(__name__)
LAST_FRAMES_S = 0.5


class Server(Protocol):
    """The owner of the engines of all models."""

    def on_progress(self, frame: Progress) -> None: ...
    def on_loading(self, name: str, loading: Loading) -> None: ...
    def on_ready(self, name: str, ready: Ready) -> None: ...
    def on_exit(self, name: str) -> None: ...
    def on_asleep(self, name: str) -> None: ...
    def on_awake(self, name: str) -> None: ...
    def on_given_up(self, model: ModelEngines, error: FirelaneError, *, was_killed: bool = False) -> None:
        """One place of a model's engines stays empty. was_killed: by a signal."""
        ...


class ModelEngines:
    """FleetEvents of the fleet of one model, and its node's Engines. served: once there is a gateway."""

    def __init__(
        self,
        name: str,
        options: EngineOptions,
        server: Server,
        sharing: EngineSharing = NOT_SHARED,
        group_of: GroupOf = lambda _: NO_GROUPS,
    ) -> None:
        self.name, self._group_of = name, group_of
        self.options = options
        self._sharing = sharing
        self.fleet = self._fleet()
        self.replicas: ReplicaSet | None = None
        self.served: ServedModel | None = None
        self.has_served = False
        self._engine_bytes = 0
        self._server = server
        self._ends: GatewayEngines | None = None
        self._turn = asyncio.Lock()

    def make_replicas(self) -> GatewayEngines:
        """Once: those of a model that was away are there already."""
        if self._ends is not None:
            return self._ends
        from firelane.server.engines import GatewayEngines

        server, name = self._server, self.name
        engines = GatewayEngines(
            self.options,
            server.on_progress,
            lambda loading: server.on_loading(name, loading),
            self._on_asleep,
            self._on_awake,
            model=name,
            sharing=self._sharing,
        )
        self._ends, self.replicas = engines, engines.replicas
        return engines

    def _fleet(self) -> Fleet[EngineLink] | RemoteFleet[EngineLink]:
        if self.options.remote is not None:
            from firelane.server.remote_engines import remote_fleet

            return remote_fleet(self.options.remote, self.options.engine, self)
        configs, shared = self.options.configs(), self._sharing.is_shared
        remote = self.options.remote_peers
        return Fleet(
            configs,
            self,
            is_shared=shared,
            group_of=self._group_of,
            remote=remote,
            shares_pages=self.options.shares_pages,
        )

    # ---- as its node sees it

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
        links = [] if self.replicas is None else self.replicas.links
        return self._engine_bytes * (self.options.replicas if self.options.remote is None else len(links))

    @property
    def standby_bytes(self) -> int:
        links = [] if self.replicas is None else self.replicas.links
        return sum(link.asleep.resident_bytes for link in links if link.asleep is not None)

    async def start(self) -> None:
        async with self._turn:
            await self.fleet.start()

    async def reconfigure(self, options: EngineOptions) -> None:
        """Other engines from now on. There is none when this is called."""
        async with self._turn:
            self.options, self._engine_bytes = options, 0
            if self._ends is not None:
                self._ends.reconfigure(options)
            self.fleet = self._fleet()
            if self._ends is not None:
                await self.fleet.connect(self._ends)

    async def stop(self) -> None:
        async with self._turn:
            if self.replicas is not None:
                self.replicas.drain()
            await self.fleet.stop()

    def close(self) -> None:
        """After the last stop; idempotent."""
        if self._ends is not None:
            self._ends.close()

    def sleep(self) -> None:
        if self.replicas is not None:
            self.replicas.sleep()

    def wake(self) -> None:
        if self.replicas is not None:
            self.replicas.wake()

    def _on_asleep(self) -> None:
        """One of them: the last one counts. One that has ended is not waited for."""
        links = [] if self.replicas is None else self.replicas.links
        gone = LinkState.DEAD
        if not self.serves and all(link.asleep is not None or link.state is gone for link in links):
            self._server.on_asleep(self.name)

    def _on_awake(self) -> None:
        """Tell the node once all engines are awake, like `_on_asleep`."""
        links = [] if self.replicas is None else self.replicas.links
        if self.serves and not any(link.state is LinkState.STANDBY for link in links):
            self._server.on_awake(self.name)

    # ---- what its fleet tells

    def on_ready(self, replica: str, ready: Ready) -> None:
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
        self._server.on_ready(self.name, ready)

    def on_exit(self, replica: str, ended: EngineExit) -> None:
        if self.has_served:
            log.warning(
                "engine_exit model=%s replica=%s %s lived_s=%.1f; another one is started",
                *(self.name, replica, ended, ended.lived_s),
            )
        self._server.on_exit(self.name)

    def on_given_up(self, ended: EngineExit, link: Link) -> None:
        """The process may be gone before its last frame, which tells why, has been read."""
        asyncio.get_running_loop().call_later(LAST_FRAMES_S, self._explain, ended, link)

    def _explain(self, ended: EngineExit, link: Link) -> None:
        failed = link.failed
        error = FirelaneError(failed.message if failed is not None else f"{ended}; its last lines are above")
        error.exit_code = failed.exit_code if failed is not None else ended.exit_code
        was_killed = failed is None and ended.return_code < 0
        self._server.on_given_up(self, error, was_killed=was_killed)
