"""The work that lies before one engine."""

from __future__ import annotations

from firelane.gateway.engines.in_flight import InFlight


class Load:
    """Prompt tokens of requests that have not drawn yet. Those at the head of the queue are looked at when
    the sum is asked for, not with each token."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[InFlight, int]] = {}
        self._sum = 0

    def add(self, flight: InFlight) -> None:
        self._waiting[flight.id] = flight, len(flight.tokens)
        self._sum += flight.prompt_tokens

    def prompt_tokens(self, in_flight: dict[int, InFlight]) -> int:
        while self._waiting:
            flight, before = next(iter(self._waiting.values()))
            if flight.id in in_flight and len(flight.tokens) == before:
                break
            del self._waiting[flight.id]
            self._sum -= len(flight.request.prompt) // 4 + before
        return self._sum
