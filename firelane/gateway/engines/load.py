"""The work that lies before one engine."""

from __future__ import annotations

from firelane.gateway.engines.in_flight import InFlight

LONGEST_MS = 1e9
LEAST_LEFT = 0.05
"""Share of prompts that have not drawn yet that is always taken to be left."""


def told_ms(value: float) -> float:
    """A time as an engine tells it, in milliseconds; 0, as of one that has told none, where it is no time."""
    return value if 0.0 <= value < LONGEST_MS else 0.0


class WholePrompts:
    """The plain twin of WorkLeft: a prompt counts as a whole until it draws."""

    def added(self, tokens: int) -> None:
        pass

    def left(self, tokens: int, now_s: float, token_ms: float) -> int:
        del now_s, token_ms
        return tokens


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
        it is not known; then nothing is taken to be computed."""
        computed = 1000 * (now_s - self._at_s) / token_ms if token_ms else 0.0
        self._at_s = now_s
        left = max(0.0, self._left - computed) + self._added
        self._left, self._added = min(max(left, LEAST_LEFT * tokens), tokens), 0
        return round(self._left)


class Load:
    """Prompt tokens of requests that have not drawn yet, less those that are likely cached. Requests that
    have drawn, or gone, are looked for at the head of the queue, and only when something has changed.

    tokens: the sum, as of the last `settle`."""

    __slots__ = ("_waiting", "_work", "tokens")

    def __init__(self, work: WorkLeft | WholePrompts | None = None) -> None:
        """work: by default WorkLeft."""
        self._waiting: dict[int, tuple[InFlight, int, int]] = {}
        self._work = work or WorkLeft()
        self.tokens = 0

    def add(self, flight: InFlight) -> None:
        tokens = flight.prompt_tokens - flight.cached_tokens
        self._waiting[flight.id] = flight, len(flight.tokens), tokens
        self.tokens += tokens
        self._work.added(tokens)

    def settle(self, in_flight: dict[int, InFlight]) -> None:
        while self._waiting:
            flight, before, tokens = next(iter(self._waiting.values()))
            if flight.id in in_flight and len(flight.tokens) == before:
                break
            del self._waiting[flight.id]
            self.tokens -= tokens

    def left(self, now_s: float, token_ms: float) -> int:
        """What is likely to be left of these tokens. See WorkLeft."""
        return self._work.left(self.tokens, now_s, token_ms)
