"""Ops that there are no CUDA kernels for: refused by name when a program is loaded."""

from __future__ import annotations

from firelane.contract import Bidirectional
from firelane.errors import UnsupportedModelError
from firelane.program.ops import (
    AddEmbedding,
    Attention,
    Gate,
    GatedLinear,
    GiveHidden,
    HeadNorm,
    IndexTopK,
    LayerNorm,
    MergeRows,
    Op,
    Pool,
    RopeAndCache,
)
from firelane.program.program import Program


def check_supported(program: Program) -> None:
    """Raises UnsupportedModelError for a program with one of them."""
    for op in program.ops:
        if missing := _missing(op):
            raise UnsupportedModelError(
                f"{program.name}: there are no CUDA kernels for {missing} yet: serve it with --backend cpu"
            )


def _missing(op: Op) -> str:
    match op:
        case Attention(shape=shape) if shape.v_dim > shape.head_dim:
            return "values that are wider than keys"
        case RopeAndCache(shape=shape, norm=HeadNorm(values=True)) if shape.v_dim != shape.head_dim:
            return "norms of values that are narrower than keys"
        case MergeRows():
            return "rows of images"
        case (
            Attention(span=Bidirectional())
            | GatedLinear(gate=Gate(kind="gelu"))
            | AddEmbedding()
            | LayerNorm()
            | Pool()
            | GiveHidden()
        ):
            return "encoders"
        case IndexTopK():
            return "sparse attention, whose positions an indexer chooses,"
        case _:
            return ""
