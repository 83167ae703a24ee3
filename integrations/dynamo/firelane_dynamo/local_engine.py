"""One engine process of this machine and the requests in flight there, over Firelane's own frames."""

from __future__ import annotations

import asyncio
import os
import signal

from firelane.engine_config import EngineConfig
from firelane.engine_state import EngineEvent, EngineExit, Lost
from firelane.errors import FirelaneError
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.link.watch import Deadlines, Heartbeat
from firelane.gateway.engines.observer import NOBODY, ReplicaListener
from firelane.gateway.engines.recovery.recovery import Resume
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.node.peer_connections import PeerConnections
from firelane.node.remote_peers import RemotePeers, RemotePeersConfig
from firelane.node.supervisor import EngineHealth, EngineSupervisor
from firelane.wire.cache_events import CacheEvents
from firelane.wire.frames import Ready
from firelane_dynamo.kv_events import CacheRecord

LAST_FRAMES_S = 0.5
"""For the last frame of an engine that ended, which says why."""
STOP_S = 2.0


class LocalEngine:
    """Used by one event loop. Owns the process, which is started again when it dies: its requests go on then,
    with the same tokens. An engine that cannot be had any more ends this worker."""

    def __init__(
        self,
        config: EngineConfig,
        deadlines: Deadlines,
        cache: CacheRecord,
        peers: RemotePeersConfig | None = None,
    ) -> None:
        """peers: how pages travel to and from engines of other workers; None: they do not."""
        self._remote, self._peers = peers, PeerConnections(connects=False)
        self._link = EngineLink(watch=Heartbeat(deadlines), tell=self._on_event)
        self.replicas = ReplicaSet([self._link], Resume())
        self._supervisor = EngineSupervisor(
            config,
            self._link.attach,
            on_given_up=self._on_given_up,
            join_peers=self._peers.join if peers is not None else None,
            health=lambda: EngineHealth(self._link.lifecycle.ready_s, self._link.lifecycle.has_served),
        )
        self._link.process = self._supervisor
        self._cache = cache
        self._first: asyncio.Future[Ready] | None = None
        self._is_closing = False

    async def start(self, events: ReplicaListener = NOBODY) -> Ready:
        """Return when the engine serves. Raises the FirelaneError for which it does not."""
        self.replicas.listen(events)
        self._first = asyncio.get_running_loop().create_future()
        if self._remote is not None:
            self._peers.reach(RemotePeers(self._remote, 1))
        await self._supervisor.start()
        return await self._first

    @property
    def pid(self) -> int | None:
        return self._supervisor.pid

    async def close(self) -> None:
        """Idempotent; also after a start that failed."""
        self._is_closing = True
        self.replicas.close()
        await self._supervisor.stop(STOP_S if self._first is not None else 0.0)
        self._peers.close()

    def _on_event(self, link: EngineLink, event: EngineEvent | CacheEvents) -> None:
        del link
        if isinstance(event, CacheEvents):
            self._cache.on_events(event)
        elif isinstance(event, Lost):
            self._cache.clear()
        elif isinstance(event, Ready) and self._first is not None and not self._first.done():
            self._first.set_result(event)

    def _on_given_up(self, ended: EngineExit) -> None:
        """The process may be gone before its last frame has been read."""
        asyncio.get_running_loop().call_later(LAST_FRAMES_S, self._explain, ended)

    def _explain(self, ended: EngineExit) -> None:
        failed = self._link.engine.failed
        if self._first is not None and not self._first.done():
            error = FirelaneError(failed.message if failed is not None else f"{ended}")
            error.exit_code = ended.exit_code
            self._first.set_exception(error)
        elif not self._is_closing:
            self.replicas.close()  # requests go on at other workers
            os.kill(os.getpid(), signal.SIGTERM)
