"""The products of a program that can have a lossless form: kind and shape, as a table's rows name them."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.program.ops import GatedLinear, Linear
from firelane.program.program import Program
from firelane.program.values import DType, Weight
from firelane.weights.formats import Format

WINDOW_FORMS = (Format.PANEL_WINDOW4, Format.PANEL_WINDOW3)
FORMS = (Format.PANEL_BF16, *WINDOW_FORMS)


@dataclass(frozen=True, order=True)
class Projection:
    """x [rows, k] times a bf16 matrix [n, k]; `kind` is the op's."""

    kind: str
    n: int
    k: int

    @classmethod
    def of(cls, op: Linear | GatedLinear) -> Projection:
        n, k = op.weight.shape
        return cls(type(op).__name__, n, k)

    @property
    def forms(self) -> tuple[Format, ...]:
        """Those that its shape can have, bf16 first."""
        return tuple(f for f in FORMS if self.k % f.k_multiple == 0)

    def __str__(self) -> str:
        return f"{self.kind} {self.n}x{self.k}"


def projections(program: Program) -> dict[Weight, Projection]:
    """The bf16 matrices that `program` multiplies with, in order of first use."""
    found: dict[Weight, Projection] = {}
    for op in program.ops:
        if isinstance(op, Linear | GatedLinear) and op.weight.dtype is DType.BF16:
            found.setdefault(op.weight, Projection.of(op))
    return found
