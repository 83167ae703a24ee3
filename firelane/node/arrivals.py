"""Record of how a model came to memory: what it waited for, and how long it took from there."""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass, field, replace

log = logging.getLogger(__name__)


class Before(enum.Enum):
    """The state that a model came from. died: its engine ended while it served or woke, and another came."""

    STANDBY = "standby"
    NO_ENGINE = "no engine"
    DIED = "died"


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """One coming of a model. memory_s: from the decision that it comes until there was memory for it.
    began_s: of the load or wake, on the node's clock. deaths: of engines meanwhile."""

    before: Before
    began_s: float
    memory_s: float = 0.0
    deaths: int = 0


@dataclass
class Arrivals:
    """All comings of one model. loads: how many of them were not from standby. memory_s, load_s, wake_s: what
    was waited for memory, and what loads and wakes took, together."""

    model: str
    current: Arrival | None = None
    count: int = field(default=0, init=False)
    loads: int = field(default=0, init=False)
    memory_s: float = field(default=0.0, init=False)
    load_s: float = field(default=0.0, init=False)
    wake_s: float = field(default=0.0, init=False)

    def begin(self, before: Before, now_s: float, memory_s: float = 0.0) -> None:
        """A load or a wake starts. memory_s: how long it waited for memory before."""
        self.current = Arrival(before=before, began_s=now_s, memory_s=memory_s)

    def engine_died(self) -> None:
        """An engine ended while the model came: its coming goes on with another one."""
        if self.current is not None:
            self.current = replace(self.current, deaths=self.current.deaths + 1)

    def end(self, now_s: float, level: int) -> None:
        """The model serves. level: of the line in the log."""
        came, self.current = self.current, None
        if came is None:
            return
        took_s = max(0.0, now_s - came.began_s)
        self.count += 1
        self.memory_s += came.memory_s
        if came.before is Before.STANDBY:
            self.wake_s += took_s
        else:
            self.loads, self.load_s = self.loads + 1, self.load_s + took_s
        log.log(
            level,
            "model_came model=%s before=%r memory_s=%.3f took_s=%.3f deaths=%d",
            *(self.model, came.before.value, came.memory_s, took_s, came.deaths),
        )
