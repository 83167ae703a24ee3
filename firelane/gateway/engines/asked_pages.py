"""A record of pages, asked once for each decision of a policy."""

from __future__ import annotations

from typing import NamedTuple

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.page_record import PageOwner, PageRecord, page_names


class Asked(NamedTuple):
    """Pages of a prompt, the tokens of it that engines have, by their lives."""

    flight: InFlight
    names: list[int]
    cached: dict[int, int]


class AskedPages:
    def __init__(self, record: PageRecord | None = None) -> None:
        self._record = record or PageRecord()
        self._asked: Asked | None = None

    def ask(self, flight: InFlight) -> Asked:
        asked = self._asked
        if asked is None or asked.flight is not flight:
            names = page_names(flight.request.salt, flight.request.prompt)
            cached = self._record.cached_tokens(names)
            asked = self._asked = Asked(flight, names, cached)
        return asked

    def sent(self, flight: InFlight, engine: PageOwner) -> None:
        """The request goes to this engine, which will have its pages."""
        asked, self._asked = self.ask(flight), None
        flight.cached_tokens = asked.cached.get(engine.life, 0)
        self._record.add(engine, asked.names)
