"""A record of pages, asked once for each decision of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.routed_engine import RoutedEngine
from firelane.gateway.engines.routing.page_record import CachedPages, PageRecord
from firelane.wire.page_names import PAGE_TOKENS, PageNames

MOST_GROUPS = 64
"""Groups of engines that have the same pages, of which the other engines are kept, at most."""


class PromptPages(NamedTuple):
    """Pages of a prompt, and how many of them engines have."""

    flight: InFlight
    names: PageNames
    cached: list[CachedPages]


class CachedTokens(NamedTuple):
    """Tokens of a prompt that engines have: `usual` of most of them; others: of the rest, by their places."""

    usual: int
    others: dict[int, int]


class AskedPages:
    """Places of engines are kept from one decision to the next, as they are mostly the same."""

    def __init__(self, record: PageRecord | None = None) -> None:
        self._record = PageRecord() if record is None else record
        self._asked: PromptPages | None = None
        self._lives: list[int] = []
        self._places: dict[int, int] = {}
        self._rest: dict[frozenset[int], dict[int, int]] = {}

    def ask(self, flight: InFlight) -> PromptPages:
        asked = self._asked
        if asked is None or asked.flight is not flight:
            names = PageNames(flight.request.salt, flight.request.prompt)
            asked = self._asked = PromptPages(flight, names, self._record.cached(names))
        return asked

    def cached_tokens(self, flight: InFlight, engines: Sequence[RoutedEngine]) -> CachedTokens:
        cached = self.ask(flight).cached
        if not cached:
            return CachedTokens(0, {})
        places = self._places_of(engines)
        usual_pages, most = max(cached, key=_number)
        if 2 * len(most) <= len(engines):
            usual_pages, others = 0, dict[int, int]()
        else:
            others = self._without(most).copy()
        for pages, lives in cached:
            if pages != usual_pages:
                others.update({places[life]: pages * PAGE_TOKENS for life in lives if life in places})
        return CachedTokens(usual_pages * PAGE_TOKENS, others)

    def sent(self, flight: InFlight, engine: RoutedEngine) -> None:
        """The request goes to this engine, which will have its pages."""
        asked, self._asked = self.ask(flight), None
        known = next((pages for pages, lives in asked.cached if engine.life in lives), 0)
        flight.cached_tokens = known * PAGE_TOKENS
        self._record.expect(engine, asked.names, known)

    def _places_of(self, engines: Sequence[RoutedEngine]) -> dict[int, int]:
        lives = [engine.life for engine in engines]
        if lives != self._lives:
            self._lives, self._places = lives, {life: i for i, life in enumerate(lives)}
            self._rest.clear()
        return self._places

    def _without(self, lives: frozenset[int]) -> dict[int, int]:
        """The other engines' places, each with none of the tokens."""
        rest = self._rest.get(lives)
        if rest is None:
            if len(self._rest) >= MOST_GROUPS:
                self._rest.clear()
            rest = self._rest[lives] = {self._places[life]: 0 for life in self._places.keys() - lives}
        return rest


def _number(cached: CachedPages) -> int:
    return len(cached.lives)
