"""An engine in simulated time: the engine's own core on the null backend, whose steps take what a described
device takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from firelane.backends.null.executor import NullExecutor
from firelane.bench.simulation.disagg_clock import DeviceClock, Timeline
from firelane.bench.simulation.disagg_transfer import PageLink, SimulatedTransfer
from firelane.contract import StepInputs, StepLimits
from firelane.engine.core import EngineCore
from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.routed_engine import Load, TenantLoad
from firelane.wire.cache_events import PageChanges
from firelane.wire.frames import Abort, NewRequest, Rejected, StepFrame, Submit

POLL_S = 0.002
"""Between two looks at pages that have not come yet, of an engine that has nothing else to do."""


@dataclass(frozen=True, kw_only=True)
class EngineKind:
    """Properties that engines of a simulation share."""

    limits: StepLimits
    vocab_size: int
    clock: DeviceClock
    link: PageLink


class SimulatedEngine:
    """An engine as the router sees it, and as it computes. on_frame: called when a step has ended, with what
    it gave."""

    def __init__(
        self,
        name: str,
        role: str,
        kind: EngineKind,
        timeline: Timeline,
        on_frame: Callable[[SimulatedEngine, StepFrame], None],
    ) -> None:
        self.name, self.role = name, role
        self.engine_id, self.pages_address = f"engine-{name}", ""
        self.life = int(name) + 1
        self.prefill_tokens = 0
        self.flights: dict[int, InFlight] = {}
        self.leaving: set[int] = set()
        """Ids of requests that were taken back, until their end here has been heard of."""
        self._kind, self._timeline, self._on_frame = kind, timeline, on_frame
        self._load = Load()
        self._inbox: list[Submit | Abort] = []
        self._ends_s = 0.0
        self._is_awake = False
        executor = NullExecutor(
            kind.limits, kind.vocab_size, self._step_s, clock=timeline.clock, sleep=lambda _: None
        )
        self._core = EngineCore(executor, self, clock=timeline.clock)

    def connect(self, peers: dict[str, SimulatedTransfer]) -> None:
        transfer = SimulatedTransfer(self._timeline, self._kind.link, self._core.kv, self.engine_id, peers)
        self._core.have_pages_from(transfer)

    @property
    def queued(self) -> TenantLoad:
        return self._load.queued

    @property
    def sequences(self) -> int:
        return len(self.flights)

    @property
    def step_ms(self) -> float:
        return self._core.cost.step_ms

    @property
    def token_ms(self) -> float:
        return self._core.cost.token_ms

    @property
    def kv_tokens(self) -> int:
        return self._kind.limits.num_blocks * self._kind.limits.block_size

    def submit(self, request: NewRequest, flight: InFlight | None = None) -> None:
        """flight: None for a request that is only announced."""
        if flight is not None:
            self.flights[flight.id] = flight
            self._load.add(flight)
            self._count()
        self._inbox.append(Submit([request]))
        self._wake()

    def take_back(self) -> list[InFlight]:
        """All requests that it has; nothing more comes of them here."""
        flights, self.flights = list(self.flights.values()), {}
        self.settle()
        self.leaving.update(flight.id for flight in flights)
        if flights:
            self._inbox.append(Abort([flight.id for flight in flights]))
            self._wake()
        return flights

    def settle(self) -> None:
        """Call after each frame, and each request that has gone."""
        self._load.settle(self.flights)
        self._count()

    def _count(self) -> None:
        """Count the load, as EngineLink does."""
        self.prefill_tokens = self._load.left(self._timeline.now_s, self.token_ms)

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._timeline.at(self._timeline.now_s, self._turn)

    def receive(self, wait_s: float | None) -> Iterable[Submit | Abort]:
        """Called by the core."""
        del wait_s
        inbox, self._inbox = self._inbox, []
        return inbox

    def send(self, frame: StepFrame | Rejected | PageChanges) -> None:
        """Called by the core."""
        assert not isinstance(frame, PageChanges), "nobody has asked for pages"
        if isinstance(frame, Rejected):
            raise AssertionError(f"a simulated request was rejected: {frame.message}")
        self._on_frame(self, frame)

    def _step_s(self, inputs: StepInputs) -> float:
        seconds = self._kind.clock.step_s(inputs)
        self._ends_s = self._timeline.now_s + seconds
        return seconds

    def _turn(self) -> None:
        """The core's turn at the end of each step: it commits that one and begins the next one."""
        now_s = self._timeline.now_s
        self._core.step()
        if self._ends_s > now_s:
            self._timeline.at(self._ends_s, self._turn)
        elif self._inbox or not self._core.is_idle:
            self._timeline.at(now_s + POLL_S, self._turn)
        else:
            self._is_awake = False
