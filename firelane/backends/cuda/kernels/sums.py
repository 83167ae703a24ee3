"""Reading a value that may still lie in parts (split_k.py): the one order in which every reader adds them
up."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.step.split_k import Source

COLUMNS = 1024
EAGER_ROWS = 64  # up to here a row is read before it is known whether there is one: waiting costs more
EAGER_REGISTERS = 64  # of a thread


class SourceOperand(NamedTuple):
    """A Source, for read(). total: where its reader writes the value, or None. count, scale: constexprs."""

    parts: Any
    part_stride: Any
    row_stride: Any
    bias: Any
    residual: Any
    residual_stride: Any
    total: Any
    total_stride: Any
    count: Any
    scale: Any


@triton.jit
def read(x, row, columns, mask):
    """float32, shaped as `columns`: row `row` of a SourceOperand, 0 where mask is false. row: int64."""
    parts = x.parts
    places = row * x.row_stride + columns
    total = tl.load(parts + places, mask=mask, other=0.0).to(tl.float32)
    for _ in tl.static_range(1, x.count):  # pyright: ignore[reportGeneralTypeIssues]
        parts += x.part_stride
        total += tl.load(parts + places, mask=mask, other=0.0)
    if x.bias is not None:
        total += tl.load(x.bias + columns, mask=mask, other=0.0).to(tl.float32)
    if x.scale != 1.0:
        total *= x.scale
    if x.residual is not None:
        total += tl.load(x.residual + row * x.residual_stride + columns, mask=mask, other=0.0)
    return total


@triton.jit
def write_total(x, total, row, columns, mask):
    """Write what was read of a row where others read it, if any do."""
    if x.total is not None:
        tl.store(x.total + row * x.total_stride + columns, total, mask=mask)


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


def source_operand(x: Source) -> SourceOperand:
    """The operand for read()."""
    if isinstance(x, Tensor):
        return SourceOperand(
            parts=x,
            part_stride=0,
            row_stride=x.stride(0),
            bias=None,
            residual=None,
            residual_stride=0,
            total=None,
            total_stride=0,
            count=tl.constexpr(1),
            scale=tl.constexpr(1.0),
        )
    return SourceOperand(
        parts=x.parts,
        part_stride=x.parts.stride(0),
        row_stride=x.parts.stride(1),
        bias=x.bias,
        residual=x.residual,
        residual_stride=0 if x.residual is None else x.residual.stride(0),
        total=x.out,
        total_stride=0 if x.out is None else x.out.stride(0),
        count=tl.constexpr(x.count),
        scale=tl.constexpr(x.scale),
    )
