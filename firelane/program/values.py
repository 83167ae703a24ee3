"""Values (rows of numbers that ops pass on), weights, and what a step's size is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class DType(Enum):
    F32 = "f32"
    BF16 = "bf16"
    I32 = "i32"

    @property
    def itemsize(self) -> int:
        return 2 if self is DType.BF16 else 4


class Rows(Enum):
    """What one row of a value stands for. TOKEN: one row a token of the step. OUTPUT: one row for each
    position whose logits are wanted, usually the last token of a sequence."""

    TOKEN = "token"
    OUTPUT = "output"


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
    """A parameter: a matrix [out_features, in_features] or a vector [width].

    It is the named checkpoint tensors stacked along axis 0, in this order, whose row counts are `parts`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    tensors: tuple[str, ...]
    parts: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.tensors) == len(self.parts) >= 1, self.name
        assert sum(self.parts) == self.shape[0], (
            f"{self.name}: parts {self.parts} do not add up to {self.shape}"
        )

    @property
    def nbytes(self) -> int:
        size = self.dtype.itemsize
        for n in self.shape:
            size *= n
        return size


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
        """How many rows a value of this kind has."""
        return self.tokens if kind is Rows.TOKEN else self.outputs


@dataclass(frozen=True)
class Cost:
    """Floating-point operations, and bytes moved from and to main memory (weights and KV; activations stay in
    cache).
    """

    flops: float = 0.0
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops, self.weight_bytes + other.weight_bytes, self.kv_bytes + other.kv_bytes
        )
