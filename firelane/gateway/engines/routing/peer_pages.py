"""Pages of prompts that another engine has, for one that was chosen for its load."""

from __future__ import annotations

from collections.abc import Sequence

from firelane.gateway.engines.recovery.in_flight import InFlight
from firelane.gateway.engines.routed_engine import RoutedEngine
from firelane.gateway.engines.routing.page_record import PageRecord
from firelane.wire.page_names import PAGE_TOKENS, PageNames


class NoPeerPages:
    """Engines compute what they have not."""

    def sent(self, flight: InFlight, engine: RoutedEngine, serving: Sequence[RoutedEngine]) -> None:
        pass


class SharedPages:
    """The engine with the longest part of a prompt gives its pages to the one that was chosen, where that has
    less of it. The record is an estimate: what the peer has not any more is computed."""

    def __init__(self, record: PageRecord | None = None) -> None:
        self._record = PageRecord() if record is None else record

    def sent(self, flight: InFlight, engine: RoutedEngine, serving: Sequence[RoutedEngine]) -> None:
        request = flight.request
        if request.pooling is not None or request.pages_at:
            return
        names = PageNames(request.salt, request.prompt)
        cached = {life: pages for pages, lives in self._record.cached(names) for life in lives}
        own = cached.get(engine.life, 0)
        self._record.expect(engine, names, own)
        peers = [other for other in serving if other is not engine and other.engine_id]
        if not (cached and peers and engine.engine_id):
            return
        peer = max(peers, key=lambda other: cached.get(other.life, 0))
        most = cached.get(peer.life, 0)
        if most > own:
            flight.have_pages_of(peer)
            flight.cached_tokens = most * PAGE_TOKENS


PeerPages = NoPeerPages | SharedPages
"""The hook of a router without roles."""
