"""The work that lies before one engine."""

from __future__ import annotations

from firelane.gateway.engines.in_flight import InFlight

LONGEST_MS = 1e9


def told_ms(value: float) -> float:
    """A time as an engine tells it, in milliseconds; 0, as of one that has told none, where it is no time."""
    return value if 0.0 <= value < LONGEST_MS else 0.0


class Load:
    """Prompt tokens of requests that have not drawn yet, less those that are likely cached. Requests that
    have drawn, or gone, are looked for at the head of the queue, and only when something has changed.

    tokens: the sum, as of the last `settle`."""

    __slots__ = ("_waiting", "tokens")

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[InFlight, int, int]] = {}
        self.tokens = 0

    def add(self, flight: InFlight) -> None:
        tokens = flight.prompt_tokens - flight.cached_tokens
        self._waiting[flight.id] = flight, len(flight.tokens), tokens
        self.tokens += tokens

    def settle(self, in_flight: dict[int, InFlight]) -> None:
        while self._waiting:
            flight, before, tokens = next(iter(self._waiting.values()))
            if flight.id in in_flight and len(flight.tokens) == before:
                break
            del self._waiting[flight.id]
            self.tokens -= tokens
