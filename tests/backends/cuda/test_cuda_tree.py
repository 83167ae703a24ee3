"""Sums as a tree: the same bits from segments that lie in one matrix and in those of several ranks, in parts
and one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from matrices_harness import uncoded_matrix
from products_harness import Rows, output, random_rows

from firelane.backends.cuda.device.linear_config import LinearConfig
from firelane.backends.cuda.kernels.matmul.linear import linear
from firelane.backends.cuda.kernels.matmul.linear_parts import linear_parts
from firelane.backends.cuda.kernels.tree import sum_of_experts, tree_sum
from firelane.backends.cuda.step.sum_order import SumOrder, is_ragged
from firelane.backends.cuda.step.tables import ROWS
from firelane.program.segments import SEGMENTS, segment_ranges, segments_of, subtree
from firelane.program.segments import tree_sum as tree_of
from tests.backends.cuda.host_device import poison
from tests.weights.files import to_bf16

PARTS = LinearConfig(row_tile=16, parts=True)
FUSED = LinearConfig(row_tile=16, k_tile=64)
SLICED = LinearConfig(row_tile=128, k_tile=64)


def order_of(widths: Sequence[int]) -> SumOrder:
    bounds = torch.from_numpy(np.cumsum([0, *widths], dtype=np.int32))
    return SumOrder(count=len(widths), bounds=bounds, is_ragged=is_ragged(tuple(widths)))


def product(weights: np.ndarray, rows: Rows, widths: Sequence[int], config: LinearConfig) -> np.ndarray:
    """[rows, features], with a bias, a scale and a residual."""
    order, n = order_of(widths), len(weights)
    matrix = uncoded_matrix([to_bf16(weights)])
    counted = {"counts": rows.counts, "count": ROWS, "max_rows": rows.max_rows}
    ends = {"bias": torch.arange(n).float(), "residual": torch.full((rows.max_rows, n), 0.3), "scale": 0.7}
    out = output(rows.max_rows, n)
    if config.parts:
        parts = output(rows.max_rows * order.count, n).view(order.count, rows.max_rows, -1)
        works = linear_parts(matrix, rows.x, parts, config=config, order=order, **counted)
        works.append(tree_sum(list(parts), out, width=n, **ends, **counted))
    else:
        levels = output(rows.max_rows * 3, n).view(3, rows.max_rows, -1) if order.levels else None
        works = linear(matrix, rows.x, out, config=config, order=order, levels=levels, **ends, **counted)
    for work in works:
        work.run()
    assert out[rows.count :].isnan().all()
    return out[: rows.count, :n].numpy()


@pytest.mark.parametrize("k", [336, 1024, 48], ids=["ragged", "whole tiles", "empty ones"])
def test_any_config_and_any_number_of_ranks(k: int) -> None:
    weights, rows = np.random.default_rng(k).standard_normal((70, k)).astype(np.float32), random_rows(3, k)
    widths = segments_of(k)
    found = [product(weights, rows, widths, config) for config in (PARTS, FUSED, SLICED)]
    assert np.isfinite(found[0]).all()
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    exact = rows.values.astype(np.float64) @ (to_bf16(weights).astype(np.uint32) << 16).view(np.float32).T
    np.testing.assert_allclose(found[0], (exact + np.arange(70)) * 0.7 + 0.3, rtol=0, atol=1e-3)
    for ranks in (2, 8):
        if all(subtree(widths, ranks, rank) for rank in range(ranks)):
            assert of_ranks(weights, rows, widths, ranks).tobytes() == found[0].tobytes()


def of_ranks(weights: np.ndarray, rows: Rows, widths: Sequence[int], ranks: int) -> np.ndarray:
    """Each with its inputs alone."""
    sums, each, n = [], SEGMENTS // ranks, len(weights)
    for rank in range(ranks):
        mine = subtree(widths, ranks, rank)
        x = poison(torch.empty(rows.max_rows, rows.x.shape[1], dtype=torch.bfloat16))
        x[:, : len(mine)] = rows.x[:, mine.start : mine.stop]
        here = Rows(x=x, count=rows.count, k=len(mine))
        own, counted = widths[rank * each : (rank + 1) * each], here.counts
        out, order = output(rows.max_rows, n), order_of(own)
        levels = output(rows.max_rows * 2, n).view(2, rows.max_rows, -1) if order.levels else None
        matrix = uncoded_matrix([to_bf16(weights[:, mine.start : mine.stop])])
        for work in linear(
            matrix, x, out, bias=None, residual=None, counts=counted, count=ROWS, max_rows=rows.max_rows,
            config=FUSED, order=order, levels=levels,
        ):  # fmt: skip
            work.run()
        sums.append(out)
    out = output(rows.max_rows, n)
    ends = {"bias": torch.arange(n).float(), "residual": torch.full((rows.max_rows, n), 0.3), "scale": 0.7}
    tree_sum(sums, out, width=n, counts=rows.counts, count=ROWS, max_rows=rows.max_rows, **ends).run()
    return out[: rows.count, :n].numpy()


@pytest.mark.parametrize("experts", [5, 24])
def test_slots_of_experts(experts: int) -> None:
    """Runs of ids as a tree; slots of experts that are elsewhere hold nothing."""
    rng, picks, rows, width = np.random.default_rng(experts), 4, 3, 40
    ids = np.sort(np.stack([rng.permutation(experts)[:picks] for _ in range(rows)]), axis=1)
    slots = rng.standard_normal((picks, rows, 64)).astype(np.float32)
    runs = segment_ranges(segments_of(experts, unit=1))
    counts = Rows(x=torch.empty(0), count=rows, k=0).counts

    def summed(first: int, count: int) -> torch.Tensor:
        here, out = torch.from_numpy(slots.copy()), output(rows, width)
        inside = [any(e in run for run in runs[first : first + count]) for e in ids.T.reshape(-1)]
        here.view(-1, 64)[~torch.tensor(inside)] = torch.nan
        sum_of_experts(
            here, torch.from_numpy(ids.astype(np.int32)), out, experts=experts, first=first, runs=count,
            width=width, counts=counts, count=ROWS, max_rows=rows,
        ).run()  # fmt: skip
        return out

    whole, (left, right) = summed(0, 8), (summed(first, 4) for first in (0, 4))
    assert torch.equal(whole[:, :width], (left + right)[:, :width])
    for row in range(rows):
        parts = [
            sum(
                (slots[j, row, :width] for j in range(picks) if ids[row, j] in run),
                np.zeros(width, np.float32),
            )
            for run in runs
        ]
        np.testing.assert_array_equal(whole[row, :width].numpy(), tree_of(parts))
