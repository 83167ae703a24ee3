"""The policy that counts in milliseconds: of the prompts before a request, its own, and its output, whose
likely length it learns. Long prompts are kept to some of the engines.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import islice
from math import floor

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.routed_engine import RoutedEngine, tokens_before
from firelane.gateway.engines.routing.asked_pages import AskedPages, CachedTokens
from firelane.gateway.engines.routing.page_record import PageRecord
from firelane.gateway.engines.routing.policies import EngineT, SessionAffinity, least_recently_used

FIRST_TOKENS = 128.0
"""Tokens expected of the first answer to a tenant."""
NEWEST = 0.1
"""Share of the newest output in a mean."""
MOST_TENANTS = 4096


class OutputLengths:
    def __init__(self) -> None:
        self._means: OrderedDict[str, float] = OrderedDict()

    def expected(self, flight: InFlight) -> float:
        """Tokens that the request is likely to draw still: 1 at least, no more than it may."""
        if flight.request.pooling is not None:
            return 0.0
        left = flight.request.sampling.max_tokens - len(flight.tokens)
        return max(1.0, min(self._means.get(flight.request.tenant, FIRST_TOKENS), left))

    def ended(self, flight: InFlight, output_tokens: int) -> None:
        """The request has ended after so many tokens."""
        tenant = flight.request.tenant
        before = self._means.pop(tenant, float(output_tokens))
        self._means[tenant] = before + NEWEST * (output_tokens - before)
        if len(self._means) > MOST_TENANTS:
            self._means.popitem(last=False)


SHARE = 0.01
"""The share of requests that count as long, by the tokens that they have to compute, the longest first."""
WINDOW, LOOK = 2000, 100
"""Requests that are looked at, each LOOK requests."""
LEAST_WORK = 0.1
"""Share of the work that long prompts have to be, else there are none: prompts are much alike."""
FEWEST_ENGINES = 3


class LongPrompts:
    """The longest hundredth of recent prompts. Kept to some engines they wait for each other, and nobody
    waits for them. least_tokens: from which on a prompt is long."""

    def __init__(self) -> None:
        self.least_tokens = float("inf")
        self._work_share = 0.0
        self._recent: deque[int] = deque(maxlen=WINDOW)
        self._number = 0

    def engines(self, number: int) -> int:
        """Number of so many engines for long prompts; 0 where there are none, or too few engines."""
        if self._work_share < LEAST_WORK or number < FEWEST_ENGINES:
            return 0
        return max(1, floor(self._work_share * number))

    def note(self, tokens: int) -> None:
        """A request that has to compute so many tokens."""
        self._recent.append(tokens)
        self._number += 1
        if self._number % LOOK == 0:
            self._look()

    def _look(self) -> None:
        sizes = sorted(self._recent, reverse=True)
        number = max(1, int(SHARE * len(sizes)))
        self.least_tokens = sizes[number - 1]
        self._work_share = sum(islice(sizes, number)) / (sum(sizes) or 1)


STEP_MS, TOKEN_MS = 10.0, 0.1
"""Milliseconds of a step and of a token where no engine has told its own yet: what counts then is that all
are alike."""
RECOMPUTE_WEIGHT = 2
"""Cost of computing a token anew, over that of waiting for one: others wait for it, too."""
NOT_CACHED = CachedTokens(0, {})
LONG_PATIENCE, SHORT_PATIENCE = 10.0, 1.0
"""A request waits this many times its own prompt's time for an engine of its kind, before it takes one of the
other kind."""


class LeastTime:
    """The engine where the request is likely to be answered soonest:

        token_ms * (prompt tokens ahead + own, as far as not cached)
        + expected output tokens * (step_ms + token_ms * sequences there)

    with each engine's own step_ms and token_ms, so that engines of different hardware compare. A token that
    is computed anew counts twice: others wait for it, too. The longest prompts are kept to
    some of the engines (LongPrompts). Of engines within a step of each other, that of the request's session,
    else the least recently used."""

    def __init__(self, record: PageRecord | None = None) -> None:
        self._pages = AskedPages(record)
        self._lengths, self._long = OutputLengths(), LongPrompts()
        self._sessions = SessionAffinity()
        self._used: dict[str, int] = {}
        self._turn = 0

    def choose(self, flight: InFlight, engines: Sequence[EngineT]) -> EngineT:
        if len(engines) == 1:
            return engines[0]
        cached = self._pages.cached_tokens(flight, engines)
        usual = _cost(engines)
        times_ms = self._times_ms(flight, engines, cached, usual)
        own_tokens = flight.prompt_tokens - max(cached.usual, *cached.others.values(), 0)
        near = self._near(own_tokens, times_ms, usual)
        if len(near) == 1:
            return engines[near[0]]
        return self._of_equal(flight, [engines[i] for i in near], has_pages=cached != NOT_CACHED)

    def _near(self, own_tokens: int, times_ms: list[float], usual: tuple[float, float]) -> list[int]:
        """Places of the engines within a step of the shortest time, of one kind."""
        first, others = self._kinds(own_tokens, len(times_ms))
        step_ms, token_ms = usual
        least_ms = min(times_ms[first])
        if others.stop > others.start:
            patience = LONG_PATIENCE if own_tokens >= self._long.least_tokens else SHORT_PATIENCE
            elsewhere_ms = min(times_ms[others])
            if elsewhere_ms + patience * token_ms * own_tokens < least_ms:
                first, least_ms = others, elsewhere_ms
        limit_ms = least_ms + step_ms
        return [i for i, time_ms in enumerate(times_ms[first], first.start) if time_ms <= limit_ms]

    def sent(self, flight: InFlight, engine: RoutedEngine) -> None:
        self._turn += 1
        self._used[engine.name] = self._turn
        self._pages.sent(flight, engine)
        self._long.note(flight.prompt_tokens - flight.cached_tokens)

    def ended(self, flight: InFlight, output_tokens: int) -> None:
        self._lengths.ended(flight, output_tokens)

    def _times_ms(
        self,
        flight: InFlight,
        engines: Sequence[RoutedEngine],
        cached: CachedTokens,
        usual: tuple[float, float],
    ) -> list[float]:
        """usual: step_ms and token_ms of engines that have not told theirs."""
        output, weight = self._lengths.expected(flight), RECOMPUTE_WEIGHT
        own = weight * (flight.prompt_tokens - cached.usual)
        step_ms, token_ms = usual
        before = tokens_before(flight, engines)
        times_ms = [
            (engine.token_ms or token_ms) * (tokens + own + output * engine.sequences)
            + output * (engine.step_ms or step_ms)
            for tokens, engine in zip(before, engines, strict=True)
        ]
        for i, tokens in cached.others.items():
            times_ms[i] -= (engines[i].token_ms or token_ms) * weight * (tokens - cached.usual)
        return times_ms

    def _kinds(self, own_tokens: int, number: int) -> tuple[slice, slice]:
        """Engines for prompts of this length, and the others."""
        kept = self._long.engines(number)
        if not kept:
            return slice(0, number), slice(0, 0)
        long, short = slice(0, kept), slice(kept, number)
        return (long, short) if own_tokens >= self._long.least_tokens else (short, long)

    def _of_equal(self, flight: InFlight, near: Sequence[EngineT], *, has_pages: bool) -> EngineT:
        if flight.session and not has_pages:
            return self._sessions.choose(flight, near)
        return least_recently_used(near, self._used)


def _cost(engines: Sequence[RoutedEngine]) -> tuple[float, float]:
    """step_ms and token_ms of engines that have not told theirs: those of the first that has."""
    for engine in engines:
        if engine.token_ms:
            return engine.step_ms, engine.token_ms
    return STEP_MS, TOKEN_MS
