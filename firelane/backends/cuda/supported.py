"""Ops that there are no CUDA kernels for yet: refused by name when a program is loaded."""

from __future__ import annotations

from firelane.errors import UnsupportedModelError
from firelane.program.ops import ExpertGatedLinear, ExpertLinear, Route
from firelane.program.program import Program


def check_supported(program: Program) -> None:
    """Raises UnsupportedModelError for a program with experts."""
    if any(isinstance(op, Route | ExpertGatedLinear | ExpertLinear) for op in program.ops):
        raise UnsupportedModelError(
            f"{program.name}: there are no CUDA kernels for experts yet: serve it with --backend cpu"
        )
