"""Sums as a tree, at the shapes of an 8 B model on one and on two devices, and of gpt-oss's experts."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.device.linear_config import ProductShape as Shape
from firelane.backends.cuda.device.linear_config import by_rule
from firelane.backends.cuda.kernels.matmul.linear import linear
from firelane.backends.cuda.kernels.matmul.linear_parts import linear_parts
from firelane.backends.cuda.kernels.norms.tree_norm import tree_norm
from firelane.backends.cuda.kernels.tree import sum_of_experts, tree_sum
from firelane.backends.cuda.lowering.segmented_launches import roomy
from firelane.backends.cuda.rank_sum import RankSum
from firelane.backends.cuda.step.sum_order import SumOrder, is_ragged
from firelane.backends.cuda.step.tables import NUM_COUNTS, TOKENS
from firelane.program.segments import segments_of
from tests.backends.cuda.compile_cases.linear import FULL, plain
from tests.backends.cuda.compile_driver import WIDE_LOADS, Case, untouched

F32, I32 = torch.float32, torch.int32
HIDDEN = 4096


def cases() -> Iterator[Case]:
    for k, ranks in ((14336, 2), (14336, 1), (11008, 2)):
        for max_rows in (1, 64, 256, 2048):
            name = f"{max_rows} x {k} inputs of {ranks}"
            yield Case(name=f"linear {name}", launch=_product(k, ranks, max_rows), needs=FULL)
    for parts in (2, 8):
        yield Case(name=f"all-reduce of {parts}", launch=_sum(parts), needs=(WIDE_LOADS,))
        yield Case(name=f"all-reduce of {parts} and norm", launch=_norm(parts), needs=(WIDE_LOADS,))
    for runs in (8, 4, 1):
        yield Case(name=f"experts, {runs} runs", launch=_experts(runs))


def _product(k: int, ranks: int, max_rows: int) -> Launch:
    widths = segments_of(k)[: 8 // ranks]
    order = SumOrder(
        count=len(widths), bounds=untouched(len(widths) + 1, dtype=I32), is_ragged=is_ragged(widths)
    )
    shape = Shape(rows=HIDDEN, k=sum(widths), gated=False, max_rows=max_rows, is_coded=False)
    config, matrix = by_rule(shape), plain(HIDDEN, sum(widths))
    x, counts = untouched(max_rows, matrix.k), untouched(NUM_COUNTS, dtype=I32)
    counted = {"counts": counts, "count": TOKENS, "max_rows": max_rows}
    if config.parts:
        parts = untouched(order.count, max_rows, HIDDEN, dtype=F32)
        return linear_parts(matrix, x, parts, config=config, order=order, **counted)[-1]
    return linear(
        matrix,
        x,
        untouched(max_rows, HIDDEN, dtype=F32),
        bias=None,
        residual=None,
        config=roomy(config, order),
        order=order,
        levels=untouched(order.levels, max_rows, HIDDEN, dtype=F32),
        **counted,
    )[-1]


def _sum(count: int) -> Launch:
    return tree_sum(
        [untouched(256, HIDDEN, dtype=F32) for _ in range(count)],
        untouched(256, HIDDEN, dtype=F32),
        width=HIDDEN,
        residual=untouched(256, HIDDEN, dtype=F32),
        counts=untouched(NUM_COUNTS, dtype=I32),
        count=TOKENS,
        max_rows=256,
    )


def _norm(count: int) -> Launch:
    rows = [untouched(256, HIDDEN, dtype=F32) for _ in range(count + 2)]
    return tree_norm(
        RankSum(parts=rows[2:], bias=None, residual=rows[0], scale=1.0, out=rows[1]),
        untouched(HIDDEN, dtype=F32),
        untouched(256, HIDDEN, dtype=torch.bfloat16),
        width=HIDDEN,
        eps=1e-5,
        counts=untouched(NUM_COUNTS, dtype=I32),
        count=TOKENS,
        max_rows=256,
    )


def _experts(runs: int) -> Launch:
    return sum_of_experts(
        untouched(4, 256, 2880, dtype=F32),
        untouched(256, 64, dtype=I32),
        untouched(256, 2880, dtype=F32),
        experts=128,
        first=0,
        runs=runs,
        width=2880,
        residual=untouched(256, 2880, dtype=F32),
        counts=untouched(NUM_COUNTS, dtype=I32),
        count=TOKENS,
        max_rows=256,
    )
