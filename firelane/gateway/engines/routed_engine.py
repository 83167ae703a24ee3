"""An engine, seen by those who choose one for a request: the router, its policies, and simulations."""

from __future__ import annotations

from typing import NamedTuple, Protocol


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
