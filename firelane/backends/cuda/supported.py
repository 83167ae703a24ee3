"""Ops that there are no CUDA kernels for: refused by name when a program is loaded."""

from __future__ import annotations

from firelane.errors import UnsupportedModelError
from firelane.program.ops import Attention
from firelane.program.program import Program


def check_supported(program: Program) -> None:
    """Raises UnsupportedModelError for a program with one of them."""
    shapes = [op.shape for op in program.ops if isinstance(op, Attention)]
    if any(shape.v_dim != shape.head_dim and not shape.shared for shape in shapes):
        raise UnsupportedModelError(
            f"{program.name}: there are no CUDA kernels for values that are wider or narrower than keys yet: "
            "serve it with --backend cpu"
        )
