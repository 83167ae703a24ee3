"""Attention spans: the positions that a query may see, given by the first one alone.

A span is all that a kernel, the rule by which pages are kept, and the rule of prefix hits know of a mask: the
query at position p sees positions first(p) .. p; a bidirectional one also sees later positions, up to
last_seen().
"""

from __future__ import annotations

from dataclasses import dataclass

KEY_TILE = 64
"""Positions that an attention kernel reads at once, from a multiple of it on. A page may be given away only
when it lies wholly before the tile of the first visible position: masked positions of a tile are read and
multiplied by an exact zero, so whatever lies there must be finite."""


@dataclass(frozen=True)
class Causal:
    """All positions up to the query's own."""

    def first(self, position: int) -> int:
        del position
        return 0

    def __str__(self) -> str:
        return "causal"


@dataclass(frozen=True)
class Window:
    """The last `tokens` positions, the query's own among them (sliding window attention)."""

    tokens: int

    def __post_init__(self) -> None:
        assert self.tokens > 0, "a window holds at least one position"

    def first(self, position: int) -> int:
        return max(0, position - self.tokens + 1)

    def __str__(self) -> str:
        return f"window {self.tokens}"


@dataclass(frozen=True)
class Chunk:
    """The query's own chunk: positions from the last multiple of `tokens` on (chunked attention, Llama 4)."""

    tokens: int

    def __post_init__(self) -> None:
        assert self.tokens > 0, "a chunk holds at least one position"

    def first(self, position: int) -> int:
        return position // self.tokens * self.tokens

    def __str__(self) -> str:
        return f"chunk {self.tokens}"


@dataclass(frozen=True)
class Bidirectional:
    """Positions on both sides, up to `distance` away; 0: the whole sequence (the attention of encoders). All
    tokens of a sequence have to be in one chunk, and the cache keeps them for this step alone.
    """

    distance: int = 0

    def __post_init__(self) -> None:
        assert self.distance >= 0, "a distance is 0 or more"

    def first(self, position: int) -> int:
        return max(0, position - self.distance) if self.distance else 0

    def __str__(self) -> str:
        return f"bidirectional {self.distance}" if self.distance else "bidirectional"


Span = Causal | Window | Chunk | Bidirectional
CAUSAL = Causal()


def reach(span: Span) -> int | None:
    """The largest number of positions that a query can see; None: no bound."""
    match span:
        case Causal():
            return None
        case Bidirectional(distance):
            return 2 * distance + 1 if distance else None
        case _:
            return span.tokens


def last_seen(span: Span, position: int, newest: int) -> int:
    """The last position that a query at `position` sees. newest: the last one of its chunk."""
    if not isinstance(span, Bidirectional):
        return position
    return min(position + span.distance, newest) if span.distance else newest


def kept_from(span: Span, position: int) -> int:
    """The first position that a query at `position`, or any later one, may still read."""
    return span.first(position) // KEY_TILE * KEY_TILE
