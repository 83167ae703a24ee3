"""Traces of requests: what a tracer is told, and the one that does nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class RequestTimes:
    """Seconds by one monotonic clock; 0: it never came to that. planned: first taken out of the engine's
    queue. first, last: when tokens came.
    """

    arrived_s: float
    ended_s: float
    planned_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0

    def add(self, planned_s: float, first_s: float, last_s: float) -> None:
        """Add the times of one of its sequences; 0 as above."""
        if planned_s and (not self.planned_s or planned_s < self.planned_s):
            self.planned_s = planned_s
        if first_s and (not self.first_s or first_s < self.first_s):
            self.first_s = first_s
        self.last_s = max(self.last_s, last_s)

    def phases(self) -> list[tuple[str, float, float]]:
        """(name, begin, end) of what it came to; the engine's clock may say that it began before it came."""
        planned_s = max(self.planned_s, self.arrived_s)
        if not self.planned_s:
            return [("queue", self.arrived_s, self.ended_s)]
        found = [("queue", self.arrived_s, planned_s)]
        found.append(("prefill", planned_s, self.first_s or self.ended_s))
        if self.last_s > self.first_s:
            found.append(("decode", self.first_s, self.last_s))
        return found

    @property
    def ttft_s(self) -> float | None:
        return self.first_s - self.arrived_s if self.first_s else None

    @property
    def total_s(self) -> float:
        return self.ended_s - self.arrived_s


class Traces(Protocol):
    """Told once for each request, when it has ended: tracing costs nothing before."""

    def ended(
        self,
        headers: Mapping[bytes, bytes],
        request_id: str,
        times: RequestTimes,
        attributes: Mapping[str, str | int],
    ) -> None: ...

    def close(self) -> None:
        """Send what has been gathered."""
        ...


class NoTraces:
    def ended(
        self,
        headers: Mapping[bytes, bytes],
        request_id: str,
        times: RequestTimes,
        attributes: Mapping[str, str | int],
    ) -> None:
        pass

    def close(self) -> None:
        pass


NO_TRACES = NoTraces()
