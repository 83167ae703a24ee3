"""RMSNorm of a sum over ranks, which is added up on the way: one launch behind the ranks' meeting in place of
two, and the sum is not read back. The bits are those of tree_sum() and rms_norm()."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.kernels.norms.norm import normed, warps_of
from firelane.backends.cuda.kernels.sums import eager_options, power_of_two
from firelane.backends.cuda.kernels.tree import tree_of, tree_operand
from firelane.backends.cuda.rank_sum import RankSum


@triton.jit
def tree_norm_kernel(  # limits: exempt (kernel: a norm's operands)
    x,
    total,
    weight,
    added,
    scalar,
    out,
    counts,
    total_stride,
    added_stride,
    out_stride,
    eps,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a row, laid out as rms_norm_kernel's."""
    row = tl.program_id(0).to(tl.int64)
    if row >= tl.load(counts + COUNT):
        return
    columns = tl.arange(0, BLOCK // 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    mask = columns < WIDTH
    values = tree_of(x, row, columns, mask)
    tl.store(total + row * total_stride + columns, values, mask=mask)
    y = normed(values, eps, WIDTH=WIDTH)
    if weight is not None:
        y *= tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    if added is not None:
        y += tl.load(added + row * added_stride + columns, mask=mask, other=0.0)
    if scalar is not None:
        y *= tl.load(scalar)
    tl.store(out + row * out_stride + columns, y.to(out.dtype.element_ty), mask=mask)


def tree_norm(
    x: RankSum,
    weight: Tensor | None,
    out: Tensor,
    *,
    added: Tensor | None = None,
    scalar: Tensor | None = None,
    width: int,
    eps: float,
    counts: Tensor,
    count: int,
    max_rows: int,
) -> Launch:  # limits: exempt (kernel: as the op, and the rows of the bucket)
    """out = (x / sqrt(mean(x^2) + eps) * weight + added) * scalar in float32, rounded to out's dtype; x is
    written to x.out besides. weight: [width]; added: float32 [rows, stride]; scalar: [1]; out: bf16 or
    float32 [rows, stride], overlaps nothing else; counts[count]: the rows there are."""
    assert len(x.parts) in (2, 4, 8), f"{len(x.parts)} parts"
    block = power_of_two(width)
    return Launch(
        kernel=tree_norm_kernel,
        grid=(max_rows,),
        arguments={
            "x": tree_operand(x.parts, bias=x.bias, residual=x.residual, scale=x.scale),
            "total": x.out,
            "weight": weight,
            "added": added,
            "scalar": scalar,
            "out": out,
            "counts": counts,
            "total_stride": x.out.stride(0),
            "added_stride": None if added is None else added.stride(0),
            "out_stride": out.stride(0),
            "eps": eps,
            "COUNT": count,
            "WIDTH": width,
            "BLOCK": block,
        },
        warps=warps_of(block),
        options=eager_options(max_rows),
    )
