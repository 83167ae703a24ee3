"""Route: a row's experts, in ascending order, and their shares; logits that lie in parts are added up on the
way."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.kernels.sums import power_of_two, read, source_operand, write_total
from firelane.backends.cuda.step.split_k import Source
from firelane.program.ops import Route
from firelane.program.ops.route import LEAST_SUM

_LEAST_SUM = tl.constexpr(float(LEAST_SUM))
_NOBODY = tl.constexpr(1 << 30)


@triton.jit
def route_kernel(  # limits: exempt (kernel: the op's operands)
    logits,
    choice_bias,
    factors,
    picks,
    picks_stride,
    shares,
    shares_stride,
    counts,
    scale,
    COUNT: tl.constexpr,
    EXPERTS: tl.constexpr,
    GROUPS: tl.constexpr,
    KEEP: tl.constexpr,
    BEST: tl.constexpr,
    PICKS: tl.constexpr,
    SIGMOID: tl.constexpr,
    NORMALISE: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a row. Its experts lie as [groups, experts of a group], padded: of both axes the order is
    that of the experts' ids."""
    row = tl.program_id(0)
    if row >= tl.load(counts + COUNT):
        return
    row = row.to(tl.int64)
    SIZE: tl.constexpr = EXPERTS // GROUPS
    group, within = tl.arange(0, GROUP_BLOCK), tl.arange(0, BLOCK)
    ids = group[:, None] * SIZE + within[None, :]
    exists = (group < GROUPS)[:, None] & (within < SIZE)[None, :]
    values = read(logits, row, ids, exists)
    write_total(logits, values, row, ids, exists)
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-values))
    else:
        values = tl.where(exists, values, float("-inf"))
        powers = tl.exp(values - tl.max(tl.max(values, axis=1), axis=0))
        scores = powers / tl.sum(tl.sum(powers, axis=1), axis=0)
    wanted = scores
    if choice_bias is not None:
        wanted += tl.load(choice_bias + ids, mask=exists, other=0.0)
    wanted = tl.where(wanted == wanted, wanted, float("-inf"))  # NaN: any choice, but a choice
    if GROUPS > 1:
        goodness = _goodness(wanted, ids, exists, BEST)
        kept = _best(goodness[:, None], group[:, None], (group < GROUPS)[:, None], KEEP)
        wanted = tl.where(kept, wanted, float("-inf"))
    chosen = _best(wanted, ids, exists, PICKS)
    chosen_scores = tl.where(chosen, scores, 0.0)
    if NORMALISE:
        chosen_scores /= tl.sum(tl.sum(chosen_scores, axis=1), axis=0) + _LEAST_SUM
    chosen_scores *= scale
    if factors is not None:
        chosen_scores *= tl.load(factors + ids, mask=exists, other=0.0)
    slots = tl.cumsum(tl.reshape(chosen.to(tl.int32), (GROUP_BLOCK * BLOCK,)), 0) - 1
    slots = tl.reshape(slots, (GROUP_BLOCK, BLOCK))
    tl.store(picks + row * picks_stride + slots, ids, mask=chosen)
    tl.store(shares + row * shares_stride + slots, chosen_scores, mask=chosen)


@triton.jit
def _best(scores, ids, exists, COUNT: tl.constexpr):
    """Which of a matrix are its COUNT highest; of equals, those with lower ids."""
    left = exists
    for _ in range(COUNT):
        highest = tl.max(tl.max(tl.where(left, scores, float("-inf")), axis=1), axis=0)
        first = tl.min(tl.min(tl.where(left & (scores == highest), ids, _NOBODY), axis=1), axis=0)
        left = left & (ids != first)
    return exists & (left == 0)


@triton.jit
def _goodness(scores, ids, exists, BEST: tl.constexpr):
    """The sum of each group's BEST highest scores."""
    left = exists
    goodness = tl.zeros((scores.shape[0],), dtype=tl.float32)
    for _ in range(BEST):
        highest = tl.max(tl.where(left, scores, float("-inf")), axis=1)
        first = tl.min(tl.where(left & (scores == highest[:, None]), ids, _NOBODY), axis=1)
        left = left & (ids != first[:, None])
        goodness += highest
    return goodness


def route(
    logits: Source,
    picks: Tensor,
    shares: Tensor,
    *,
    op: Route,
    bias: Tensor | None,
    factors: Tensor | None,
    counts: Tensor,
    count: int,
    max_rows: int,
) -> Launch:
    """picks: int32, shares: float32, both [rows, stride]; bias, factors: the op's, float32 [experts];
    split-K logits are written to logits.out besides, if others read them."""
    experts, groups = op.logits.width, op.groups
    number = 1 if groups is None else groups.count
    return Launch(
        kernel=route_kernel,
        grid=(max_rows,),
        arguments={
            "logits": source_operand(logits),
            "choice_bias": bias,
            "factors": factors,
            "picks": picks,
            "picks_stride": picks.stride(0),
            "shares": shares,
            "shares_stride": shares.stride(0),
            "counts": counts,
            "scale": op.scale,
            "COUNT": count,
            "EXPERTS": experts,
            "GROUPS": number,
            "KEEP": 1 if groups is None else groups.keep,
            "BEST": 1 if groups is None else groups.best,
            "PICKS": op.picks.width,
            "SIGMOID": op.score == "sigmoid",
            "NORMALISE": op.normalise,
            "GROUP_BLOCK": power_of_two(number),
            "BLOCK": power_of_two(experts // number),
        },
        warps=1,
    )
