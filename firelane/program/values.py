"""Values (rows of numbers that ops pass on), weights, and what a step's size is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from itertools import accumulate
from math import prod

from firelane.errors import UnsupportedModelError
from firelane.program.recipes import Code, Piece, WeightLayout


class DType(Enum):
    F32 = "f32"
    BF16 = "bf16"
    I32 = "i32"

    @property
    def itemsize(self) -> int:
        return 2 if self is DType.BF16 else 4


class Rows(Enum):
    """The meaning of one row of a value. TOKEN: one row a token of the step. OUTPUT: one row for each
    position whose logits are wanted, usually the last token of a sequence. OWN: one row for each token of
    the step that this rank computes for all ranks of its stage: own_rows()."""

    TOKEN = "token"
    OUTPUT = "output"
    OWN = "own"


def own_rows(count: int, rank: int, ranks: int) -> range:
    """The run of `count` token rows that one rank computes; lengths of two ranks' runs differ by one at
    most."""
    return range(count * rank // ranks, count * (rank + 1) // ranks)


@dataclass(frozen=True)
class Value:
    """A named matrix [rows, width]; the number of rows is known only at run time.

    BF16 values are rounded to nearest even when written; a backend may keep them in a wider container.
    """

    name: str
    rows: Rows
    width: int
    dtype: DType


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A parameter: a vector [n], a matrix [n, k], or a matrix for each expert [experts, n, k]; named once in
    a program. It is its pieces stacked along the rows (see recipes.py), matrix after matrix."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    pieces: tuple[Piece, ...]
    layout: WeightLayout = WeightLayout.PLAIN
    code: Code | None = None
    """The code that the checkpoint stores the numbers in; None: as numbers."""
    others: tuple[tuple[Piece, ...], ...] = ()
    """Other recipes for it: checkpoints of one model may be stored in several ways."""

    def __post_init__(self) -> None:
        """AssertionError for a recipe that does not fit; UnsupportedModelError for a code."""
        for pieces in (self.pieces, *self.others):
            self._check(pieces)
        assert self.layout.by_expert == (len(self.shape) == 3), f"{self.name}: {self.layout}, {self.shape}"
        assert not (self.layout.is_gated and self.rows % 2), f"{self.name}: gated, of {self.rows} rows"
        assert self.dtype is DType.F32 or not any(p.plus for p in self.pieces), f"{self.name}: plus is F32"
        if self.code is not None:
            raise UnsupportedModelError(f"{self.name}: weights stored as {self.code.kind} are not supported")

    def _check(self, pieces: tuple[Piece, ...]) -> None:
        found = sum(piece.height for piece in pieces)
        assert found == self.height, f"{self.name}: pieces of {found} rows do not add up to {self.shape}"
        assert all(p.width == self.k and p.is_vector != self.is_matrix for p in pieces), (
            f"{self.name}: pieces have other inputs than {self.shape}"
        )

    def __hash__(self) -> int:
        """The hash of the name alone: pieces may be many, and hashes are asked for often."""
        return hash(self.name)

    @classmethod
    def stored(cls, name: str, shape: tuple[int, ...], dtype: DType, tensor: str | None = None) -> Weight:
        """A vector or matrix that is one tensor of the checkpoint, as it is; of its own name by default."""
        return cls(name=name, shape=shape, dtype=dtype, pieces=(Piece(tensor=tensor or name, shape=shape),))

    @property
    def is_matrix(self) -> bool:
        """A matrix or several."""
        return len(self.shape) > 1

    @property
    def matrices(self) -> int:
        return self.shape[0] if len(self.shape) == 3 else 1

    @property
    def rows(self) -> int:
        """Number of rows of one matrix."""
        return self.shape[-2] if self.is_matrix else self.shape[0]

    @property
    def height(self) -> int:
        """Rows of all matrices together."""
        return self.matrices * self.rows

    @property
    def k(self) -> int:
        """The number of inputs, 1 of a vector."""
        return self.shape[-1] if self.is_matrix else 1

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that it is made of, each once."""
        return tuple(dict.fromkeys(piece.tensor for piece in self.pieces))

    def spans(self, first: int, last: int) -> Iterator[tuple[Piece, range]]:
        """Rows first .. last - 1, counted over all matrices, as rows of the pieces that hold them."""
        at = bisect_right(self._starts, first) - 1
        while first < last:
            start, piece = self._starts[at], self.pieces[at]
            stop = min(last, start + piece.height)
            if first < stop:
                yield piece, range(first - start, stop - start)
            first, at = stop, at + 1

    def cut(
        self, *, rows: Sequence[range] = (), columns: range | None = None, experts: range | None = None
    ) -> Weight:
        """The same weight with these ranges of rows of each matrix, in this order, these inputs and these
        experts alone; all where nothing is said. Of a gated weight, `rows` count in each of its halves."""
        half = self.rows // 2 if self.layout.is_gated else self.rows
        rows, experts = rows or (range(half),), range(self.matrices) if experts is None else experts
        blocks = [e * self.rows + h for e in experts for h in range(0, self.rows, half)]
        pieces = tuple(
            piece.cut(within, columns)
            for first, last in _joined((at + r.start, at + r.stop) for at in blocks for r in rows)
            for piece, within in self.spans(first, last)
        )
        height = sum(len(r) for r in rows) * self.rows // half
        shape = (len(experts), height, self.k if columns is None else len(columns))
        return replace(
            self,
            shape=shape[3 - len(self.shape) :] if self.is_matrix else (height,),
            pieces=pieces,
            others=(),
        )

    @cached_property
    def _starts(self) -> list[int]:
        """The first row of each piece."""
        return list(accumulate((piece.height for piece in self.pieces[:-1]), initial=0))


def _joined(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges that follow on each other as one."""
    begin, end = 0, 0
    for first, last in ranges:
        if first != end:
            yield begin, end
            begin = first
        end = last
    yield begin, end


@dataclass(frozen=True)
class RankPart:
    """Place of what a rank has of a table's rows, or of a layer's experts: from `first` on, of so many."""

    first: int
    of: int


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """The size of one step, for costs. `attended` is the sum over token rows of the positions that each may
    see (before any window); `context` the sum over sequences of their length after the step."""

    tokens: int
    outputs: int
    attended: int
    context: int
    sequences: int

    def rows(self, kind: Rows) -> int:
        """Number of rows of a value of this kind; of OWN ones the step is that of share()."""
        return self.outputs if kind is Rows.OUTPUT else self.tokens

    def share(self, ranks: int) -> StepShape:
        """The rows of the rank that has most of them."""
        parts = (self.tokens, self.attended, self.context, self.sequences)
        tokens, attended, context, sequences = (-(-n // ranks) for n in parts)
        return replace(self, tokens=tokens, attended=attended, context=context, sequences=sequences)


@dataclass(frozen=True)
class Cost:
    """Floating-point operations, bytes moved from and to main memory (weights and KV; activations stay in
    cache), and bytes that come from or go to other ranks.
    """

    flops: float = 0.0
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0
    link_bytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.weight_bytes + other.weight_bytes,
            self.kv_bytes + other.kv_bytes,
            self.link_bytes + other.link_bytes,
        )
