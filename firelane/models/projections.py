"""Queries, keys and values as a checkpoint keeps them, put into the order in which kernels rotate heads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from firelane.models.rotary_layout import RotaryLayout
from firelane.program.ops import HeadShape
from firelane.program.recipes import Piece


@dataclass(frozen=True, kw_only=True)
class Projections:
    """Of one layer: `tensors` holds queries, keys and values, one tensor each or all in one; `inputs` is the
    width of what they read."""

    heads: HeadShape
    layout: RotaryLayout
    inputs: int
    tensors: tuple[str, ...]

    @property
    def rows(self) -> int:
        return self.heads.q_width + 2 * self.heads.kv_width

    def matrix(self) -> tuple[Piece, ...]:
        """Rows of queries, then of keys, then of values."""
        names = [f"{tensor}.weight" for tensor in self.tensors]
        if len(names) == 1:
            return self._fused(
                names[0], (self.rows, self.inputs), self.layout.matrix(names[0], self._all, self.inputs)
            )
        (q, k, v), heads = names, self.heads
        return (
            *self.layout.matrix(q, heads.heads, self.inputs),
            *self.layout.matrix(k, heads.kv_heads, self.inputs),
            Piece(tensor=v, shape=(heads.kv_width, self.inputs)),
        )

    def bias(self) -> tuple[Piece, ...]:
        names = [f"{tensor}.bias" for tensor in self.tensors]
        if len(names) == 1:
            return self._fused(names[0], (self.rows,), self.layout.vector(names[0], self._all))
        (q, k, v), heads = names, self.heads
        return (
            *self.layout.vector(q, heads.heads),
            *self.layout.vector(k, heads.kv_heads),
            Piece(tensor=v, shape=(heads.kv_width,)),
        )

    def norm(self, tensor: str, kind: Literal["q", "k"], *, whole: bool, plus: float) -> tuple[Piece, ...]:
        """The weight of the norm of queries or of keys: of each head, or of all heads together."""
        count = (self.heads.heads if kind == "q" else self.heads.kv_heads) if whole else 1
        return self.layout.vector(f"{tensor}.weight", count, plus=plus)

    @property
    def _all(self) -> int:
        return self.heads.heads + 2 * self.heads.kv_heads

    def _fused(self, tensor: str, shape: tuple[int, ...], turned: tuple[Piece, ...]) -> tuple[Piece, ...]:
        """turned: all rows of the tensor, every head in the kernels' order, which values do not have."""
        if len(turned) == 1 and turned[0].is_as_stored:
            return turned
        values = range(self.rows - self.heads.kv_width, self.rows)
        return (*_first(turned, values.start), Piece(tensor=tensor, shape=shape, rows=values))


def _first(pieces: Iterable[Piece], rows: int) -> Iterator[Piece]:
    """So many rows of those pieces."""
    for piece in pieces:
        if rows <= 0:
            return
        yield piece.cut(range(min(rows, piece.height)))
        rows -= piece.height
