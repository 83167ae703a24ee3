"""Policies: rules that choose one of several engines for a request. They see an engine as a `RoutedEngine`,
so that a simulation can ask them, too."""

from __future__ import annotations

import math
import random
import time
from bisect import bisect
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.routed_engine import RoutedEngine, tokens_before
from firelane.gateway.engines.routing.asked_pages import AskedPages
from firelane.gateway.engines.routing.page_record import PageRecord

GATE_RATIO = 1.5
GATE_TOKENS = 4096
"""An engine is overloaded when it is beyond both: this many times, and tokens more than, the least loaded."""
POINTS_PER_ENGINE = 64
SEQUENCE_TOKENS = 32
"""Prompt tokens that a sequence in flight counts for: each of its tokens holds up those who wait."""


EngineT = TypeVar("EngineT", bound=RoutedEngine)


class Policy(Protocol):
    """A rule for engines that could all take the request."""

    def choose(self, flight: InFlight, engines: Sequence[EngineT]) -> EngineT:
        """One of `engines`, of which there is at least one."""
        ...

    def sent(self, flight: InFlight, engine: RoutedEngine) -> None:
        """The request goes to this engine now."""
        ...

    def ended(self, flight: InFlight, output_tokens: int) -> None:
        """It has ended by itself, after so many tokens."""
        ...


def tokens_ahead(flight: InFlight, engines: Sequence[RoutedEngine]) -> list[float]:
    """Prompt tokens that each engine computes before those of the request, and one for each sequence."""
    before = tokens_before(flight, engines)
    return [tokens + engine.sequences for tokens, engine in zip(before, engines, strict=True)]


def least_recently_used(engines: Sequence[EngineT], used: dict[str, int]) -> EngineT:
    """used: turns at which engines got a request last, by their names."""
    get = used.get
    turns = [get(engine.name, 0) for engine in engines]
    return engines[turns.index(min(turns))]


class Random:
    """Any engine: the plain twin of all others."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def choose(self, flight: InFlight, engines: Sequence[EngineT]) -> EngineT:
        del flight
        return self._random.choice(engines)

    def sent(self, flight: InFlight, engine: RoutedEngine) -> None:
        pass

    def ended(self, flight: InFlight, output_tokens: int) -> None:
        pass


class LeastRequests:
    """The engine with the fewest requests in flight, whatever their length."""

    def choose(self, flight: InFlight, engines: Sequence[EngineT]) -> EngineT:
        del flight
        return min(engines, key=lambda engine: engine.sequences)

    def sent(self, flight: InFlight, engine: RoutedEngine) -> None:
        pass

    def ended(self, flight: InFlight, output_tokens: int) -> None:
        pass


class LeastTokens:
    """The engine with the least work; that of the last request for one with the same prompt."""

    def __init__(self) -> None:
        self._sibling: tuple[bytes, RoutedEngine] | None = None

    def choose(self, flight: InFlight, engines: Sequence[EngineT]) -> EngineT:
        if self._sibling is not None and self._sibling[0] is flight.request.prompt:
            for engine in engines:
                if engine is self._sibling[1]:
                    return engine
        ahead = tokens_ahead(flight, engines)
        return engines[ahead.index(min(ahead))]

    def sent(self, flight: InFlight, engine: RoutedEngine) -> None:
        self._sibling = flight.request.prompt, engine

    def ended(self, flight: InFlight, output_tokens: int) -> None:
        pass


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
        ahead = tokens_ahead(flight, engines)
        limit = _gate(min(ahead))
        by_name = {engine.name: i for i, engine in enumerate(engines)}
        self._update_ring(frozenset(by_name))
        start = bisect(self._ring, (_point(flight.request.salt + flight.session), ""))
        for i in range(len(self._ring)):
            place = by_name[self._ring[(start + i) % len(self._ring)][1]]
            if ahead[place] <= limit:
                return engines[place]
        raise AssertionError("the least loaded engine is within the gate")

    def sent(self, flight: InFlight, engine: RoutedEngine) -> None:
        self._others.sent(flight, engine)

    def ended(self, flight: InFlight, output_tokens: int) -> None:
        pass

    def _update_ring(self, names: frozenset[str]) -> None:
        if names != self._on_ring:
            self._on_ring = names
            numbered = ((name, i) for name in names for i in range(POINTS_PER_ENGINE))
            self._ring = sorted((_point(f"{name}#{i}".encode()), name) for name, i in numbered)


def _gate(least: float) -> float:
    return max(GATE_RATIO * least, least + GATE_TOKENS)


def _point(key: bytes) -> int:
    """Equal in all processes, so that several gateways choose alike."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


class PageAware:
    """The engine that is likely to have the first token soonest: by the prompt tokens that it has to compute
    before, those of this prompt that are not cached there, and its sequences. Of equal ones the least
    recently used."""

    def __init__(self, record: PageRecord | None = None) -> None:
        self._pages = AskedPages(record)
        self._turn = 0
        self._used: dict[str, int] = {}

    def choose(self, flight: InFlight, engines: Sequence[EngineT]) -> EngineT:
        if len(engines) == 1:
            return engines[0]
        before = tokens_before(flight, engines)
        costs = [
            tokens + SEQUENCE_TOKENS * engine.sequences
            for tokens, engine in zip(before, engines, strict=True)
        ]
        usual, others = self._pages.cached_tokens(flight, engines)
        for i, tokens in others.items():
            costs[i] -= tokens - usual
        least = min(costs)
        if costs.count(least) == 1:
            return engines[costs.index(least)]
        equal = [engine for engine, cost in zip(engines, costs, strict=True) if cost == least]
        return least_recently_used(equal, self._used)

    def sent(self, flight: InFlight, engine: RoutedEngine) -> None:
        self._turn += 1
        self._used[engine.name] = self._turn
        self._pages.sent(flight, engine)

    def ended(self, flight: InFlight, output_tokens: int) -> None:
        pass


def in_time(flight: InFlight, engines: Sequence[EngineT]) -> Sequence[EngineT]:
    """The engines that are likely to be through with the request by its deadline, by what lies before it
    there and by their own times; all of them where none is, or where it has no deadline. An engine that has
    told no times yet is taken to be able to."""
    if flight.due_s == math.inf or len(engines) < 2:
        return engines
    left_ms = 1000 * (flight.due_s - time.monotonic())
    own, output = flight.prompt_tokens, max(1, flight.request.due_tokens - len(flight.tokens))
    able = [
        engine
        for tokens, engine in zip(tokens_before(flight, engines), engines, strict=True)
        if engine.token_ms * (tokens + own) + engine.step_ms * output <= left_ms
    ]
    return able or engines
