"""RotaryLayout: where a checkpoint keeps the dimensions of a head that are rotated as a pair.

Kernels rotate dimensions (i, i + d/2) of a head of width d. Checkpoints pair (i, i + r/2) of the first r
dimensions, or (2i, 2i + 1), and pass the rest on. The rows that make queries and keys are put in the kernels'
order when weights are packed, and what is passed on turns at frequency 0. Scores stay the same, as long as
everything that makes q or k, norms and biases included, is ordered alike. Values are never reordered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from firelane.program.recipes import Piece


@dataclass(frozen=True)
class RotaryLayout:
    """Of a head in the checkpoint: its first `rotated` dimensions turn, in pairs of neighbours where it is
    `interleaved`."""

    head_dim: int
    rotated: int
    interleaved: bool = False

    def matrix(self, tensor: str, heads: int, inputs: int, *, before: int = 0) -> tuple[Piece, ...]:
        """A projection to heads. before: rows of each head that come before those `head_dim` ones and stay as
        they are, as in latent attention."""
        return tuple(self._pieces(tensor, heads, (inputs,), before, plus=0.0))

    def vector(self, tensor: str, heads: int = 1, *, before: int = 0, plus: float = 0.0) -> tuple[Piece, ...]:
        """A bias of heads, or a norm's weight over all of them or, by default, one that they share."""
        return tuple(self._pieces(tensor, heads, (), before, plus=plus))

    def _pieces(
        self, tensor: str, heads: int, tail: tuple[int, ...], before: int, *, plus: float
    ) -> Iterator[Piece]:
        d, shape = self.head_dim, (heads * (before + self.head_dim), *tail)
        halves = not self.interleaved and self.rotated == d
        if halves:
            yield Piece(tensor=tensor, shape=shape, plus=plus)
        elif before:
            for head in range(heads):
                at = head * (before + d)
                yield Piece(tensor=tensor, shape=shape, rows=range(at, at + before), plus=plus)
                yield from self._head(tensor, shape, at + before, plus)
        elif self.interleaved:
            yield _swapped(tensor, shape, (heads, d // 2, 2, *tail), plus)
        elif 2 * self.rotated == d and d % 4 == 0:
            yield _swapped(tensor, shape, (heads, 2, 2, d // 4, *tail), plus)
        else:
            for head in range(heads):
                yield from self._head(tensor, shape, head * d, plus)

    def _head(self, tensor: str, shape: tuple[int, ...], at: int, plus: float) -> Iterator[Piece]:
        """The rows from `at` on of one head."""
        d, turned = self.head_dim, self.rotated // 2
        if self.interleaved:
            for parity in range(2):
                take = (range(at + parity, at + d, 2),)
                yield Piece(tensor=tensor, shape=shape, take=take, plus=plus)
            return
        passed = d // 2 - turned
        for first, count in (
            (0, turned),
            (2 * turned, passed),
            (turned, turned),
            (2 * turned + passed, passed),
        ):
            if count:
                yield Piece(tensor=tensor, shape=shape, rows=range(at + first, at + first + count), plus=plus)


def _swapped(tensor: str, shape: tuple[int, ...], view: tuple[int, ...], plus: float) -> Piece:
    """The second and third axis of `view` exchanged."""
    order = (0, 2, 1, *range(3, len(view)))
    return Piece(tensor=tensor, shape=shape, view=view, order=order, plus=plus)
