"""Sums as a binary tree, in the order of program.segments: of parts of a product, of what ranks have of a
value, and of the experts of a row."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.kernels.sums import columns_of
from firelane.program.segments import SEGMENTS

EXPERT_COLUMNS = 256


class TreeOperand(NamedTuple):
    """Parts of a sum, a tuple of 1, 2, 4 or 8 of one stride, and what is added to it. scale: constexpr."""

    parts: tuple[Any, ...]
    part_stride: Any
    bias: Any
    residual: Any
    residual_stride: Any
    scale: Any


def tree_operand(
    parts: Sequence[Tensor], *, bias: Tensor | None, residual: Tensor | None, scale: float
) -> TreeOperand:
    assert len(parts) in (1, 2, 4, 8), f"{len(parts)} parts"
    return TreeOperand(
        parts=tuple(parts),
        part_stride=parts[0].stride(0),
        bias=bias,
        residual=residual,
        residual_stride=0 if residual is None else residual.stride(0),
        scale=tl.constexpr(scale),
    )


@triton.jit
def _two(parts, first: tl.constexpr, places, mask):
    left = tl.load(parts[first] + places, mask=mask, other=0.0)
    return left + tl.load(parts[first + 1] + places, mask=mask, other=0.0)


@triton.jit
def _four(parts, first: tl.constexpr, places, mask):
    return _two(parts, first, places, mask) + _two(parts, first + 2, places, mask)


@triton.jit
def tree_of(x, row, columns, mask):
    """float32, shaped as `columns`: (the parts of a row added up + bias) * scale + residual, 0 where mask is
    false. x: TreeOperand; row: int64."""
    places = row * x.part_stride + columns
    if len(x.parts) == 1:
        total = tl.load(x.parts[0] + places, mask=mask, other=0.0)
    elif len(x.parts) == 2:
        total = _two(x.parts, 0, places, mask)
    else:
        total = _four(x.parts, 0, places, mask)
    if len(x.parts) == 8:
        total += _four(x.parts, 4, places, mask)
    if x.bias is not None:
        total += tl.load(x.bias + columns, mask=mask, other=0.0)
    if x.scale != 1.0:
        total *= x.scale
    if x.residual is not None:
        total += tl.load(x.residual + row * x.residual_stride + columns, mask=mask, other=0.0)
    return total


@triton.jit
def tree_sum_kernel(
    x,
    out,
    counts,
    out_stride,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a row and BLOCK columns of out = tree_of() them."""
    row = tl.program_id(0).to(tl.int64)
    if row >= tl.load(counts + COUNT):
        return
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    total = tree_of(x, row, columns, mask)
    tl.store(out + row * out_stride + columns, total, mask=mask)


def tree_sum(
    parts: Sequence[Tensor],
    out: Tensor,
    *,
    width: int,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    scale: float = 1.0,
    counts: Tensor,
    count: int,
    max_rows: int,
) -> Launch:  # limits: exempt (an op's operands)
    """parts: 1, 2, 4 or 8 of float32 [>= max_rows, stride], of one stride, which `out` may be one of; bias:
    float32 [width]; residual, out: float32 [rows, stride]. counts[count]: the rows there are."""
    block = columns_of(width)
    return Launch(
        kernel=tree_sum_kernel,
        grid=(max_rows, -(-width // block)),
        arguments={
            "x": tree_operand(parts, bias=bias, residual=residual, scale=scale),
            "out": out,
            "counts": counts,
            "out_stride": out.stride(0),
            "COUNT": count,
            "WIDTH": width,
            "BLOCK": block,
        },
    )


@triton.jit
def sum_of_experts_kernel(  # limits: exempt (kernel: slots in pointers and strides)
    slots,
    picks,
    residual,
    out,
    counts,
    slot_stride,
    row_stride,
    picks_stride,
    residual_stride,
    out_stride,
    PICKS: tl.constexpr,
    EXPERTS: tl.constexpr,
    ALL: tl.constexpr,
    FIRST: tl.constexpr,
    SEGMENTS: tl.constexpr,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a row and BLOCK columns of out: the slots of each of SEGMENTS runs of experts, from number
    FIRST of ALL runs on, are added from the first on, then the runs as a tree."""
    row = tl.program_id(0).to(tl.int64)
    if row >= tl.load(counts + COUNT):
        return
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    runs = tl.arange(0, SEGMENTS)[:, None]
    total = tl.zeros((SEGMENTS, BLOCK), dtype=tl.float32)
    for slot in range(PICKS):
        expert = tl.load(picks + row * picks_stride + slot)
        run = (ALL * (expert + 1) - 1) // EXPERTS - FIRST
        here = mask & (run >= 0) & (run < SEGMENTS)
        part = tl.load(slots + row * row_stride + columns, mask=here, other=0.0)
        slots += slot_stride
        total += tl.where(runs == run, part[None, :], 0.0)
    if SEGMENTS >= 8:
        total = _pairs(total, 8, BLOCK)
    if SEGMENTS >= 4:
        total = _pairs(total, 4, BLOCK)
    if SEGMENTS >= 2:
        total = _pairs(total, 2, BLOCK)
    total = tl.reshape(total, (BLOCK,))
    if residual is not None:
        total += tl.load(residual + row * residual_stride + columns, mask=mask, other=0.0)
    tl.store(out + row * out_stride + columns, total, mask=mask)


@triton.jit
def _pairs(runs, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """[COUNT / 2, BLOCK]: neighbours of [COUNT, BLOCK] added up."""
    first, second = tl.split(tl.permute(tl.reshape(runs, (COUNT // 2, 2, BLOCK)), (0, 2, 1)))
    return first + second


def sum_of_experts(
    slots: Tensor,
    picks: Tensor,
    out: Tensor,
    *,
    experts: int,
    first: int,
    runs: int,
    width: int,
    residual: Tensor | None = None,
    counts: Tensor,
    count: int,
    max_rows: int,
) -> Launch:  # limits: exempt (an op's operands)
    """slots: float32 [picks of a row, >= max_rows, stride]; picks: int32 [rows, stride], ids of all ranks'
    `experts`; runs: how many of the SEGMENTS runs of ids are here, from number `first` on. Slots of other
    experts hold nothing. residual, out: float32 [rows, stride]."""
    block = min(EXPERT_COLUMNS, columns_of(width))
    return Launch(
        kernel=sum_of_experts_kernel,
        grid=(max_rows, -(-width // block)),
        arguments={
            "slots": slots,
            "picks": picks,
            "residual": residual,
            "out": out,
            "counts": counts,
            "slot_stride": slots.stride(0),
            "row_stride": slots.stride(1),
            "picks_stride": picks.stride(0),
            "residual_stride": 0 if residual is None else residual.stride(0),
            "out_stride": out.stride(0),
            "PICKS": slots.shape[0],
            "EXPERTS": experts,
            "ALL": SEGMENTS,
            "FIRST": first,
            "SEGMENTS": runs,
            "COUNT": count,
            "WIDTH": width,
            "BLOCK": block,
        },
    )
