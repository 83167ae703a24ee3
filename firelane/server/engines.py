"""The gateway's engines as the node sees them."""

from __future__ import annotations

from collections.abc import Callable

from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.link.watch import Deadlines, Heartbeat
from firelane.gateway.engines.recovery.ejection import OutlierEjection
from firelane.gateway.engines.recovery.recovery import NoRecovery, Resume
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.gateway.engines.routing.routing import Router
from firelane.gateway.kv_events.feed import make_feed
from firelane.server.engine_shares import EngineOptions
from firelane.server.engine_sharing import NOT_SHARED, EngineSharing
from firelane.wire.frames import Loading, Progress


class GatewayEngines:
    """Makes a link for each engine; all belong to `replicas`."""

    def __init__(
        self,
        options: EngineOptions,
        on_progress: Callable[[Progress], None],
        on_loading: Callable[[Loading], None],
        on_asleep: Callable[[], None] = lambda: None,
        on_awake: Callable[[], None] = lambda: None,
        *,
        model: str = "",
        sharing: EngineSharing = NOT_SHARED,
    ) -> None:
        self._model, self._sharing = model, sharing
        self._places: dict[EngineLink, int] = {}
        self._events = make_feed(options.kv_events)
        self.replicas = ReplicaSet(ejection=OutlierEjection())
        self._set_up(options)
        self._on_progress, self._on_loading = on_progress, on_loading
        self._on_asleep, self._on_awake = on_asleep, on_awake

    def _set_up(self, options: EngineOptions) -> None:
        self.replicas.set_up(
            Resume() if options.recovery else NoRecovery(),
            Router.of(options.routing, shares_pages=options.shares_pages),
        )
        self._deadlines = Deadlines(
            silence_s=options.engine_timeout_s, step_s=options.step_deadline_s or Deadlines.step_s
        )

    def reconfigure(self, options: EngineOptions) -> None:
        """Other engines from now on, of which there is none yet."""
        for link in list(self.replicas.links):
            self.remove(link)
        self._set_up(options)

    @property
    def serves(self) -> bool:
        return bool(self.replicas.serving)

    @property
    def unheard(self) -> int:
        return self.replicas.unheard

    def add(self, name: str) -> EngineLink:
        link = EngineLink(name=name, watch=Heartbeat(self._deadlines))
        link.on_progress, link.on_loading = self._on_progress, self._on_loading
        link.on_asleep, link.on_awake = self._on_asleep, self._on_awake
        link.on_down = self._on_down
        sharing, place = self._sharing, self._sharing.place()
        self._places[link] = place
        link.is_shared = sharing.is_shared
        if sharing.is_shared:
            link.on_role = lambda role: sharing.assign(place, role)
            link.on_acceptor = lambda acceptor: sharing.add(place, self._model, name, acceptor)
        self._events.follow(link)
        self.replicas.add(link)
        return link

    def _on_down(self, reason: str) -> None:
        """Nobody waits for it to come back from standby."""
        del reason
        self._on_awake()

    def remove(self, link: EngineLink) -> None:
        self._sharing.remove(self._places.pop(link))
        self.replicas.remove(link)

    def retire(self, link: EngineLink, reason: str) -> None:
        self._sharing.retire(self._places[link])
        self.replicas.retire(link, reason)

    def move(self, link: EngineLink, count: int) -> int:
        return self.replicas.move(link, count)

    def close(self) -> None:
        """All that is to be told of the engines' caches has been told then. Idempotent."""
        self._events.close()

    def is_held(self, link: EngineLink) -> bool:
        return self._sharing.is_held(self._places[link])
