"""An engine, seen by those who choose one for a request: the router, its policies, and simulations. The work
that lies before it, and what of that comes before a tenant's next request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from firelane.gateway.engines.in_flight import InFlight
from firelane.wire.frames import NewRequest


class Queued:
    """Prompt tokens that are to be computed, by tenant, and the sum of the weights of those that have any."""

    __slots__ = ("tenants", "tokens", "weights")

    def __init__(self) -> None:
        self.tenants: dict[str, int] = {}
        self.tokens, self.weights = 0, 0.0

    def change(self, tenant: str, weight: float, tokens: int) -> None:
        """tokens: more than before, or fewer. A tenant's weight is that of its requests."""
        before = self.tenants.get(tenant, 0)
        self.tokens += tokens
        if before + tokens > 0:
            self.tenants[tenant] = before + tokens
            self.weights += 0.0 if before else weight
        elif before:
            del self.tenants[tenant]
            self.weights = self.weights - weight if self.tenants else 0.0


class TenantLoad(NamedTuple):
    """Work of tenants at one engine, and their background work, which waits for all other."""

    interactive: Queued
    background: Queued


class RoutedEngine(Protocol):
    """An engine that could take a request."""

    @property
    def name(self) -> str:
        """The name of its place, which the next engine there has, too."""
        ...

    @property
    def life(self) -> int:
        """A number that no engine has had, after each restart."""
        ...

    @property
    def role(self) -> str:
        """The part of requests that is sent there, as in EngineConfig."""
        ...

    @property
    def engine_id(self) -> str:
        """The name by which others ask for its pages; "" where it gives none."""
        ...

    @property
    def pages_address(self) -> str:
        """The address of its pages on another host; "" here."""
        ...

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that are to be computed there, less those that are likely cached."""
        ...

    @property
    def queued(self) -> TenantLoad | None:
        """The same by tenant; None where the engine does not share its steps between them."""
        ...

    @property
    def sequences(self) -> int:
        """Sequences in flight there."""
        ...

    @property
    def kv_tokens(self) -> int:
        """Tokens that its KV cache holds."""
        ...

    @property
    def step_ms(self) -> float:
        """Time of its shortest steps; 0 where it has not told it."""
        ...

    @property
    def token_ms(self) -> float:
        """Time of each prompt token in long steps; 0 where it has not told it."""
        ...


LONGEST_MS = 1e9
LEAST_LEFT = 0.05
"""Share of prompts that have not drawn yet that is always taken to be left."""


def told_ms(value: float) -> float:
    """A time as an engine tells it, in milliseconds; 0, as of one that has told none, where it is no time."""
    return value if 0.0 <= value < LONGEST_MS else 0.0


class WorkLeft:
    """An estimate of the prompt tokens that are left between two first tokens: the engine computes one each
    `token_ms` while there are any. Wrong by what a step holds, and by as much as token_ms is; a first token
    puts it right."""

    __slots__ = ("_added", "_at_s", "_left")

    def __init__(self) -> None:
        self._left, self._at_s, self._added = 0.0, 0.0, 0

    def added(self, tokens: int) -> None:
        self._added += tokens

    def left(self, tokens: int, now_s: float, token_ms: float) -> int:
        """tokens: of all prompts that have not drawn yet. now_s: never earlier than before. token_ms: 0 where
        it is not known; then a prompt counts as a whole until it draws."""
        computed = 1000 * (now_s - self._at_s) / token_ms if token_ms else 0.0
        self._at_s = now_s
        left = max(0.0, self._left - computed) + self._added
        self._left, self._added = min(max(left, LEAST_LEFT * tokens), tokens), 0
        return round(self._left)


class Load:
    """Prompt tokens of requests that have not drawn yet, less those that are likely cached. Requests that
    have drawn, or gone, are looked for at the head of the queue, and only when something has changed.

    tokens: the sum, as of the last `settle`; queued: the same by tenant."""

    __slots__ = ("_waiting", "_work", "queued", "tokens")

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[InFlight, int, int]] = {}
        self._work = WorkLeft()
        self.tokens = 0
        self.queued = TenantLoad(Queued(), Queued())

    def add(self, flight: InFlight) -> None:
        tokens = flight.prompt_tokens - flight.cached_tokens
        self._waiting[flight.id] = flight, len(flight.tokens), tokens
        self._change(flight, tokens)
        self._work.added(tokens)

    def settle(self, in_flight: dict[int, InFlight]) -> None:
        while self._waiting:
            flight, before, tokens = next(iter(self._waiting.values()))
            if flight.id in in_flight and len(flight.tokens) == before:
                break
            del self._waiting[flight.id]
            self._change(flight, -tokens)

    def left(self, now_s: float, token_ms: float) -> int:
        """Estimate of the tokens that are left to compute of these. See WorkLeft."""
        return self._work.left(self.tokens, now_s, token_ms)

    def _change(self, flight: InFlight, tokens: int) -> None:
        self.tokens += tokens
        request = flight.request
        queued = self.queued.background if request.background else self.queued.interactive
        queued.change(request.tenant, request.weight, tokens)


def tokens_before(flight: InFlight, engines: Sequence[RoutedEngine]) -> list[float]:
    """The prompt tokens that each engine computes before the request's own prompt is complete, at most.

    Engines share steps between tenants by weighted fair queueing (engine.policies): while a tenant has n
    tokens computed, another one has n times the ratio of their weights computed at most, and background work
    waits for all other. So the flood of one tenant makes an engine look no busier to the others than it is
    for them.
    """
    own, found = flight.prompt_tokens, list[float]()
    for engine in engines:
        total, queued = engine.prefill_tokens, engine.queued
        if total > own and queued is not None:  # whose prompts they are matters where there are many
            found.append(min(total, _shared(queued, flight.request, own)))
        else:
            found.append(total)
    return found


def _shared(load: TenantLoad, request: NewRequest, own: int) -> float:
    """own: prompt tokens of the request."""
    kind = load.background if request.background else load.interactive
    mine = kind.tenants.get(request.tenant, 0)
    others = kind.weights - request.weight if mine else kind.weights
    before = min(kind.tokens, mine + (mine + own) * max(others, 0.0) / request.weight)
    return before + (load.interactive.tokens if request.background else 0)
