"""Policies: rules that choose one of several engines for a request. They see an engine as a `Candidate`, so
that a simulation can ask them, too."""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol, TypeVar

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.page_record import PageRecord, page_names

GATE_RATIO = 1.5
GATE_TOKENS = 4096
"""An engine is overloaded when it is beyond both: this many times, and tokens more than, the least loaded."""
POINTS_PER_ENGINE = 64
SEQUENCE_TOKENS = 32
"""Prompt tokens that a sequence in flight counts for: each of its tokens holds up those who wait."""
RECOMPUTE_WEIGHT = 2
"""Cost of computing a token anew, over that of waiting for one: others wait for it, too."""


class Candidate(Protocol):
    """An engine that could take the request. prefill_tokens: prompt tokens that are to be computed there,
    less those that are likely cached; sequences: in flight there; kv_tokens: that its KV cache holds;
    life: a number that no engine has had, after each restart."""

    @property
    def name(self) -> str: ...
    @property
    def prefill_tokens(self) -> int: ...
    @property
    def sequences(self) -> int: ...
    @property
    def kv_tokens(self) -> int: ...
    @property
    def life(self) -> int: ...


EngineT = TypeVar("EngineT", bound=Candidate)


class Policy(Protocol):
    """A rule for engines that could all take the request."""

    def choose(self, flight: InFlight, engines: Sequence[EngineT]) -> EngineT:
        """One of `engines`, of which there is at least one."""
        ...

    def sent(self, flight: InFlight, engine: Candidate) -> None:
        """The request goes to this engine now."""
        ...


def tokens_ahead(engine: Candidate) -> int:
    """Prompt tokens to compute, and one for each sequence."""
    return engine.prefill_tokens + engine.sequences


class Random:
    """Any engine: the plain twin of all others."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def choose(self, flight: InFlight, engines: Sequence[EngineT]) -> EngineT:
        del flight
        return self._random.choice(engines)

    def sent(self, flight: InFlight, engine: Candidate) -> None:
        pass


class LeastRequests:
    """The engine with the fewest requests in flight, whatever their length."""

    def choose(self, flight: InFlight, engines: Sequence[EngineT]) -> EngineT:
        del flight
        return min(engines, key=lambda engine: engine.sequences)

    def sent(self, flight: InFlight, engine: Candidate) -> None:
        pass


class LeastTokens:
    """The engine with the least work; that of the last request for one with the same prompt."""

    def __init__(self) -> None:
        self._sibling: tuple[bytes, Candidate] | None = None

    def choose(self, flight: InFlight, engines: Sequence[EngineT]) -> EngineT:
        if self._sibling is not None and self._sibling[0] is flight.request.prompt:
            for engine in engines:
                if engine is self._sibling[1]:
                    return engine
        return min(engines, key=tokens_ahead)

    def sent(self, flight: InFlight, engine: Candidate) -> None:
        self._sibling = flight.request.prompt, engine


class SessionAffinity:
    """The engine of the request's session, by consistent hashing with bounded load: an overloaded engine is
    passed over for the next one on the ring. Requests without a session go where the least work is."""

    def __init__(self) -> None:
        self._others = LeastTokens()
        self._ring: list[tuple[int, str]] = []
        self._on_ring: frozenset[str] = frozenset()

    def choose(self, flight: InFlight, engines: Sequence[EngineT]) -> EngineT:
        if not flight.session:
            return self._others.choose(flight, engines)
        by_name = {engine.name: engine for engine in engines}
        self._update_ring(frozenset(by_name))
        limit = _gate(min(map(tokens_ahead, engines)))
        start = bisect(self._ring, (_point(flight.request.salt + flight.session), ""))
        for i in range(len(self._ring)):
            engine = by_name[self._ring[(start + i) % len(self._ring)][1]]
            if tokens_ahead(engine) <= limit:
                return engine
        raise AssertionError("the least loaded engine is within the gate")

    def sent(self, flight: InFlight, engine: Candidate) -> None:
        self._others.sent(flight, engine)

    def _update_ring(self, names: frozenset[str]) -> None:
        if names != self._on_ring:
            self._on_ring = names
            numbered = ((name, i) for name in names for i in range(POINTS_PER_ENGINE))
            self._ring = sorted((_point(f"{name}#{i}".encode()), name) for name, i in numbered)


def _gate(least: int) -> float:
    return max(GATE_RATIO * least, least + GATE_TOKENS)


def _point(key: bytes) -> int:
    """Equal in all processes, so that several gateways choose alike."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


class PageAware:
    """The engine that is likely to have the first token soonest: by the prompt tokens that it has to compute
    before, those of this prompt that are not cached there, and its sequences. Of equal ones the least
    recently used."""

    def __init__(self, record: PageRecord | None = None) -> None:
        self._record = record or PageRecord()
        self._turn = 0
        self._used: dict[str, int] = {}
        self._asked: _Asked | None = None

    def choose(self, flight: InFlight, engines: Sequence[EngineT]) -> EngineT:
        if len(engines) == 1:
            return engines[0]
        cached, weight = self._ask(flight).cached.get, RECOMPUTE_WEIGHT
        costs = [
            engine.prefill_tokens + SEQUENCE_TOKENS * engine.sequences - weight * cached(engine.life, 0)
            for engine in engines
        ]
        least = min(costs)
        if costs.count(least) == 1:
            return engines[costs.index(least)]
        equal = (engine for engine, cost in zip(engines, costs, strict=True) if cost == least)
        return min(equal, key=lambda engine: self._used.get(engine.name, 0))

    def sent(self, flight: InFlight, engine: Candidate) -> None:
        self._turn += 1
        self._used[engine.name] = self._turn
        asked, self._asked = self._ask(flight), None
        flight.cached_tokens = asked.cached.get(engine.life, 0)
        self._record.add(engine, asked.names)

    def _ask(self, flight: InFlight) -> _Asked:
        """The record's answer, once for each decision."""
        asked = self._asked
        if asked is None or asked.flight is not flight:
            names = page_names(flight.request.salt, flight.request.prompt)
            cached = self._record.cached_tokens(names)
            asked = self._asked = _Asked(flight, names, cached)
        return asked


class _Asked(NamedTuple):
    """Pages of a prompt, the tokens of it that engines have, by their lives."""

    flight: InFlight
    names: list[int]
    cached: dict[int, int]
