"""Reading a value that may still lie in parts (split_k.py): the one order in which every reader adds them
up."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.step.split_k import Source, SplitKSum

COLUMNS = 1024
EAGER_ROWS = 64  # up to here a row is read before it is known whether there is one: waiting costs more
EAGER_REGISTERS = 64  # of a thread


@triton.jit
def read(  # limits: exempt (kernel: a Source in pointers and strides)
    parts,
    part_stride,
    row_stride,
    bias,
    residual,
    residual_stride,
    row,
    columns,
    mask,
    PARTS: tl.constexpr,
    SCALE: tl.constexpr,
):
    """float32, shaped as `columns`: row `row` of a Source, 0 where mask is false. row: int64."""
    places = row * row_stride + columns
    total = tl.load(parts + places, mask=mask, other=0.0).to(tl.float32)
    for _ in tl.static_range(1, PARTS):  # pyright: ignore[reportGeneralTypeIssues]
        parts += part_stride
        total += tl.load(parts + places, mask=mask, other=0.0)
    if bias is not None:
        total += tl.load(bias + columns, mask=mask, other=0.0).to(tl.float32)
    if SCALE != 1.0:
        total *= SCALE
    if residual is not None:
        total += tl.load(residual + row * residual_stride + columns, mask=mask, other=0.0)
    return total


def power_of_two(n: int) -> int:
    """The lowest one that is not below n: a block's size."""
    return 1 << (n - 1).bit_length()


def columns_of(width: int) -> int:
    """The number of columns that a program takes, where no program needs a row as a whole."""
    return min(COLUMNS, power_of_two(width))


def eager_options(max_rows: int) -> dict[str, Any]:
    """Registers for all loads of a program at once. The compiler would save them, for more programs than
    there are, and take turns."""
    return {"maxnreg": EAGER_REGISTERS} if max_rows <= EAGER_ROWS else {}


def source_arguments(x: Source) -> dict[str, Any]:
    """The arguments of a kernel that call read()."""
    if isinstance(x, Tensor):
        return {
            "parts": x,
            "part_stride": 0,
            "row_stride": x.stride(0),
            "bias": None,
            "residual": None,
            "residual_stride": 0,
            "PARTS": 1,
            "SCALE": 1.0,
        }
    return {
        "parts": x.parts,
        "part_stride": x.parts.stride(0),
        "row_stride": x.parts.stride(1),
        "bias": x.bias,
        "residual": x.residual,
        "residual_stride": 0 if x.residual is None else x.residual.stride(0),
        "PARTS": x.count,
        "SCALE": x.scale,
    }


def total_arguments(x: Source) -> dict[str, Any]:
    """Arguments for the place where a reader writes the value that it has added up, if anywhere."""
    total = x.out if isinstance(x, SplitKSum) else None
    return {"total": total, "total_stride": 0 if total is None else total.stride(0)}
