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
    """Layout of a head in the checkpoint: its first `rotated` dimensions turn, in pairs of neighbours where
    it is `interleaved`."""

    head_dim: int
    rotated: int
    interleaved: bool = False

    def matrix(
        self,
        tensor: str,
        heads: int,
        inputs: int,
        *,
        kept: range | None = None,
        before: int = 0,
        behind: int = 0,
    ) -> tuple[Piece, ...]:
        """A projection to heads. kept: those that are wanted, all if None: of a tensor that holds queries,
        keys and values. before: rows of each head that come before those `head_dim` ones and stay as they
        are, as in latent attention. behind: rows of each head behind them, which are left out."""
        return tuple(self._pieces(tensor, heads, kept or range(heads), (inputs,), (before, behind), 0.0))

    def vector(
        self, tensor: str, heads: int = 1, *, kept: range | None = None, before: int = 0, plus: float = 0.0
    ) -> tuple[Piece, ...]:
        """A bias of heads, or a norm's weight over all of them or, by default, one that they share."""
        return tuple(self._pieces(tensor, heads, kept or range(heads), (), (before, 0), plus))

    def _pieces(
        self,
        tensor: str,
        heads: int,
        kept: range,
        tail: tuple[int, ...],
        around: tuple[int, int],
        plus: float,
    ) -> Iterator[Piece]:
        before, behind = around
        width = before + self.head_dim + behind
        shape, view = (heads * width, *tail), self._view(heads, tail)
        rows = None if len(kept) == heads else range(kept.start * width, kept.stop * width)
        if not self.interleaved and self.rotated == self.head_dim and not behind:
            yield Piece(tensor=tensor, shape=shape, rows=rows, plus=plus)
        elif view and not (before or behind):
            order = (0, 2, 1, *range(3, len(view)))
            yield Piece(tensor=tensor, shape=shape, view=view, order=order, rows=rows, plus=plus)
        else:
            for at in range(kept.start * width, kept.stop * width, width):
                if before:
                    yield Piece(tensor=tensor, shape=shape, rows=range(at, at + before), plus=plus)
                yield from self._head(tensor, shape, at + before, plus)

    def _view(self, heads: int, tail: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in which an exchange of the second and third axis gives the kernels' order; () if none
        does."""
        d = self.head_dim
        if self.interleaved:
            return (heads, d // 2, 2, *tail)
        return (heads, 2, 2, d // 4, *tail) if 2 * self.rotated == d else ()

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
