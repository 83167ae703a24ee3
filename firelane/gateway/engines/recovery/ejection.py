"""Rules that keep requests from an engine that serves much worse than its peers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, TypeVar

from firelane.gateway.engines.routed_engine import RoutedEngine

log = logging.getLogger(__name__)
FLOOR_TOKENS = 256
"""Added to the tokens that a request waits for: the shortest wait is that of some steps."""
NEWEST = 0.2
"""Share of the newest wait in a mean."""


class Wait(NamedTuple):
    """A request's way to its first token, as the gateway has seen it. tokens: of prompts that were computed
    meanwhile, its own among them, as far as they were not cached."""

    tokens: int
    seconds: float


EngineT = TypeVar("EngineT", bound=RoutedEngine)


class NoEjection:
    """All engines get requests: the plain twin."""

    ejected = 0

    def admitted(self, engines: Sequence[EngineT], now_s: float) -> Sequence[EngineT]:
        del now_s
        return engines

    def note(self, engine: RoutedEngine, wait: Wait) -> None:
        pass

    def lost(self, engine: RoutedEngine, now_s: float) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class OutlierRule:
    """An engine is slow when its mean wait for a token, after so many waits at least, is more than `ratio`
    times the median of its peers' (those of its role), and costs a request more than excess_s; it fails if it
    was lost `losses` times within window_s. It gets no new requests for first_s then, and each further time
    for twice as long, up to most_s; after most_s without a cause it begins anew. No more than most_share of
    the engines are kept from requests at a time."""

    ratio: float = 4.0
    excess_s: float = 0.25
    waits: int = 8
    losses: int = 3
    window_s: float = 60.0
    first_s: float = 10.0
    most_s: float = 300.0
    most_share: float = 0.5


class _Seen:
    """Record of one place. mean_s, excess_s: of a token's wait, and of a request's, in this life."""

    def __init__(self) -> None:
        self.life = 0
        self.waits = 0
        self.token_s = self.wait_s = 0.0
        self.lost_s: list[float] = []
        self.until_s = float("-inf")
        self.times = 0

    def note(self, wait: Wait) -> None:
        token_s = wait.seconds / (wait.tokens + FLOOR_TOKENS)
        share = NEWEST if self.waits else 1.0
        self.waits += 1
        self.token_s += share * (token_s - self.token_s)
        self.wait_s += share * (wait.seconds - self.wait_s)

    def forget(self) -> None:
        self.waits, self.token_s, self.wait_s = 0, 0.0, 0.0


class OutlierEjection:
    """The Ejection by an OutlierRule."""

    def __init__(self, rule: OutlierRule | None = None) -> None:
        self.ejected = 0
        self._rule = rule or OutlierRule()
        self._seen: dict[str, _Seen] = {}
        self._has_news = False
        self._next_s = float("inf")

    def note(self, engine: RoutedEngine, wait: Wait) -> None:
        seen = self._seen.setdefault(engine.name, _Seen())
        if seen.life != engine.life:
            seen.forget()
            seen.life = engine.life
        seen.note(wait)
        self._has_news = True

    def lost(self, engine: RoutedEngine, now_s: float) -> None:
        seen = self._seen.setdefault(engine.name, _Seen())
        seen.forget()
        since_s = now_s - self._rule.window_s
        seen.lost_s = [*(at_s for at_s in seen.lost_s if at_s > since_s), now_s]
        self._has_news = True
        self._seen = {name: one for name, one in self._seen.items() if self._counts(one, now_s)}

    def _counts(self, seen: _Seen, now_s: float) -> bool:
        """Whether a rule may still come to it: engines on other hosts come and go under ever new names."""
        rule, lost_s = self._rule, max(seen.lost_s, default=float("-inf"))
        return seen.waits > 0 or lost_s > now_s - rule.window_s or seen.until_s > now_s - rule.most_s

    def admitted(self, engines: Sequence[EngineT], now_s: float) -> Sequence[EngineT]:
        if self._has_news:
            self._has_news = False
            for role in {engine.role for engine in engines}:
                self._judge([engine for engine in engines if engine.role == role], now_s)
        if now_s >= self._next_s:
            ends_s = [seen.until_s for seen in self._seen.values() if seen.until_s > now_s]
            self._next_s = min(ends_s, default=float("inf"))
        if self._next_s == float("inf"):
            return engines
        return [engine for engine in engines if not self._is_out(engine, now_s)] or engines

    def _judge(self, engines: Sequence[RoutedEngine], now_s: float) -> None:
        room = int(self._rule.most_share * len(engines)) - sum(self._is_out(one, now_s) for one in engines)
        for engine in engines:
            seen = self._seen.get(engine.name)
            if seen is None or self._is_out(engine, now_s) or room <= 0:
                continue
            why = self._failing(seen, now_s) or self._slow(engine.name, seen, engines)
            if why:
                room -= 1
                self._eject(engine.name, seen, why, now_s)

    def _failing(self, seen: _Seen, now_s: float) -> str:
        since_s = now_s - self._rule.window_s
        number = sum(at_s > since_s for at_s in seen.lost_s)
        return f"it was lost {number} times within {self._rule.window_s:g} s" * (number >= self._rule.losses)

    def _slow(self, name: str, seen: _Seen, engines: Sequence[RoutedEngine]) -> str:
        rule, least = self._rule, self._rule.waits
        others = (self._seen.get(one.name) for one in engines if one.name != name)
        peers = [other.token_s for other in others if other is not None and other.waits >= least]
        if seen.waits < least or not peers:
            return ""
        usual_s = median(peers)
        if seen.token_s <= rule.ratio * usual_s:
            return ""
        times = seen.token_s / usual_s if usual_s else float("inf")
        if seen.wait_s * (1 - 1 / times) <= rule.excess_s:
            return ""
        return f"first tokens take {times:.1f} times as long as at its peers"

    def _eject(self, name: str, seen: _Seen, why: str, now_s: float) -> None:
        rule = self._rule
        if now_s - seen.until_s > rule.most_s:
            seen.times = 0
        for_s = min(rule.most_s, rule.first_s * 2**seen.times)
        seen.times, seen.until_s = seen.times + 1, now_s + for_s
        seen.forget()
        seen.lost_s.clear()
        self.ejected += 1
        self._next_s = min(self._next_s, seen.until_s)
        log.warning("engine_ejected replica=%s for_s=%g reason=%r", name, for_s, why)

    def _is_out(self, engine: RoutedEngine, now_s: float) -> bool:
        seen = self._seen.get(engine.name)
        return seen is not None and now_s < seen.until_s


Ejection = NoEjection | OutlierEjection
