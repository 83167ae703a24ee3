"""Sums as a binary tree, in the order of program.segments: of parts of a product, of what ranks have of a
value, and of the experts of a row."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.kernels.sums import columns_of
from firelane.program.segments import SEGMENTS

POINTERS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
EXPERT_COLUMNS = 256


@triton.jit
def _two(first, second, places, mask):
    return tl.load(first + places, mask=mask, other=0.0) + tl.load(second + places, mask=mask, other=0.0)


@triton.jit
def _four(  # limits: exempt (kernel: parts in pointers)
    first, second, third, fourth, places, mask
):
    return _two(first, second, places, mask) + _two(third, fourth, places, mask)


@triton.jit
def tree_of(  # limits: exempt (kernel: parts in pointers)
    first, second, third, fourth, fifth, sixth, seventh, eighth, places, mask, PARTS: tl.constexpr
):
    """float32, shaped as `places`: the parts there added up, 0 where mask is false."""
    if PARTS == 1:
        total = tl.load(first + places, mask=mask, other=0.0)
    elif PARTS == 2:
        total = _two(first, second, places, mask)
    elif PARTS == 4:
        total = _four(first, second, third, fourth, places, mask)
    else:
        total = _four(first, second, third, fourth, places, mask)
        total += _four(fifth, sixth, seventh, eighth, places, mask)
    return total


@triton.jit
def tree_sum_kernel(  # limits: exempt (kernel: parts in pointers)
    first,
    second,
    third,
    fourth,
    fifth,
    sixth,
    seventh,
    eighth,
    bias,
    residual,
    out,
    counts,
    part_stride,
    residual_stride,
    out_stride,
    PARTS: tl.constexpr,
    SCALE: tl.constexpr,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a row and BLOCK columns of out = (sum of the parts + bias) * SCALE + residual."""
    row = tl.program_id(0).to(tl.int64)
    if row >= tl.load(counts + COUNT):
        return
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    places = row * part_stride + columns
    total = tree_of(
        first, second, third, fourth, fifth, sixth, seventh, eighth, places, mask, PARTS=PARTS
    )  # fmt: skip
    if bias is not None:
        total += tl.load(bias + columns, mask=mask, other=0.0)
    if SCALE != 1.0:
        total *= SCALE
    if residual is not None:
        total += tl.load(residual + row * residual_stride + columns, mask=mask, other=0.0)
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
    assert len(parts) in (1, 2, 4, 8), f"{len(parts)} parts"
    block = columns_of(width)
    return Launch(
        kernel=tree_sum_kernel,
        grid=(max_rows, -(-width // block)),
        arguments={
            **dict.fromkeys(POINTERS),
            **dict(zip(POINTERS, parts, strict=False)),
            "bias": bias,
            "residual": residual,
            "out": out,
            "counts": counts,
            "part_stride": parts[0].stride(0),
            "residual_stride": 0 if residual is None else residual.stride(0),
            "out_stride": out.stride(0),
            "PARTS": len(parts),
            "SCALE": scale,
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
