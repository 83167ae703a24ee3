"""The work that lies before one engine, as its frames and the requests in flight tell it."""

from __future__ import annotations

from firelane.engine_state import EngineState
from firelane.gateway.engines.routed_engine import Load, TenantLoad, told_ms
from firelane.wire.frames import Beat, EngineStats


class EngineLoad:
    """One engine as the router sees it (RoutedEngine): which one it is, and its work as of the last frame.
    Owned by its link. Plain values, since a router reads those of all engines for each request."""

    __slots__ = (
        "_is_fair",
        "beat",
        "engine_id",
        "is_shared",
        "kv_tokens",
        "life",
        "name",
        "pages_address",
        "prefill_tokens",
        "queued",
        "role",
        "sequences",
        "stats",
        "step_ms",
        "token_ms",
    )

    def __init__(self, name: str, *, is_shared: bool) -> None:
        """name, is_shared: as in EngineLink."""
        self.name, self.is_shared = name, is_shared
        self.life = 0
        """Number that differs between two processes of one place."""
        self.role, self.engine_id, self.pages_address, self.kv_tokens = "both", "", "", 0
        self.prefill_tokens = 0
        """Tokens that are likely left, as of the last frame, of uncached prompts that have not drawn yet."""
        self.queued: TenantLoad | None = None
        """The same by tenant, where the engine takes turns between tenants."""
        self.sequences = 0
        """Sequences in flight there, for other gateways too as far as told."""
        self.step_ms = self.token_ms = 0.0
        self.stats = EngineStats()
        self.beat = Beat(0.0)
        self._is_fair = False

    def describe(self, engine: EngineState) -> None:
        """Call with each new state of the engine."""
        self.role, self.engine_id, self.pages_address = engine.role, engine.engine_id, engine.pages_address
        self.kv_tokens = engine.kv_tokens
        self._is_fair = engine.ready is not None and engine.ready.scheduling_policy == "fair"
        if engine.ready is not None:
            self.life = hash((self.name, engine.ready.pid))

    def note(self, beat: Beat) -> None:
        self.beat = beat
        self.step_ms, self.token_ms = told_ms(beat.step_ms), told_ms(beat.token_ms)

    def count(self, own: int, work: Load, now_s: float) -> None:
        """Call after each change of the requests in flight. own: their number; work: of their prompts."""
        self.prefill_tokens = work.left(now_s, self.token_ms)
        self.queued = work.queued if self._is_fair else None
        self.sequences = max(own, self.stats.running + self.stats.waiting) if self.is_shared else own
