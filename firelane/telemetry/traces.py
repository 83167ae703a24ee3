"""Traces of requests: what a tracer is told, and the one that does nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """Seconds by one monotonic clock; None: it never came to that. planned: taken out of the engine's queue.
    first, last: when tokens came.
    """

    arrived_s: float
    planned_s: float | None
    first_s: float | None
    last_s: float | None
    ended_s: float

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.arrived_s

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
