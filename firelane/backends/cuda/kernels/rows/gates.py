"""Gated: one value times a function of another, element by element."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.kernels.activations import activated
from firelane.backends.cuda.kernels.sums import columns_of
from firelane.program.ops import Gated


@triton.jit
def gated_kernel(  # limits: exempt (kernel: pointers and strides)
    x,
    x_stride,
    gate,
    gate_stride,
    out,
    out_stride,
    counts,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a row and BLOCK columns."""
    row = tl.program_id(0)
    if row >= tl.load(counts + COUNT):
        return
    row = row.to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    factor = activated(tl.load(gate + row * gate_stride + column, mask=mask, other=0.0), ACT)
    product = tl.load(x + row * x_stride + column, mask=mask, other=0.0).to(tl.float32) * factor
    tl.store(out + row * out_stride + column, product.to(out.dtype.element_ty), mask=mask)


def gated(
    x: Tensor, gate: Tensor, out: Tensor, *, op: Gated, counts: Tensor, count: int, max_rows: int
) -> Launch:
    """x, out: bf16 or float32 [rows, stride]; gate: float32 [rows, stride]; counts[count]: the rows there
    are."""
    block = columns_of(op.out.width)
    return Launch(
        kernel=gated_kernel,
        grid=(max_rows, -(-op.out.width // block)),
        arguments={
            "x": x,
            "x_stride": x.stride(0),
            "gate": gate[:, op.column :],
            "gate_stride": gate.stride(0),
            "out": out,
            "out_stride": out.stride(0),
            "counts": counts,
            "COUNT": count,
            "WIDTH": op.out.width,
            "ACT": op.act,
            "BLOCK": block,
        },
    )
