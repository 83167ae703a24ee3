"""RMSNorm of a sum over ranks, in Triton's interpreter: the bits of the sum and of its norm, one after the
other."""

from __future__ import annotations

import pytest
import torch

from firelane.backends.cuda.kernels.norms.norm import rms_norm
from firelane.backends.cuda.kernels.norms.tree_norm import tree_norm
from firelane.backends.cuda.kernels.tree import tree_sum
from firelane.backends.cuda.rank_sum import RankSum
from firelane.backends.cuda.step.tables import NUM_COUNTS, TOKENS
from tests.backends.cuda.rows_harness import assert_untouched, rows_of

ROWS, MAX_ROWS, EPS = 3, 4, 1e-5


def counted() -> dict[str, object]:
    counts = torch.full((NUM_COUNTS,), 77, dtype=torch.int32)
    counts[TOKENS] = ROWS
    return {"counts": counts, "count": TOKENS, "max_rows": MAX_ROWS}


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("width", [80, 4096])
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "all operands"])
def test_the_bits_of_two_launches(ranks: int, width: int, is_plain: bool) -> None:
    stride, few = width + 16, None if is_plain else 1
    parts = [random(MAX_ROWS, stride, seed=rank) for rank in range(ranks)]
    bias, weight = few and random(width, seed=20), few and random(width, seed=21)
    residual, added = few and random(MAX_ROWS, stride, seed=22), few and random(MAX_ROWS, width, seed=23)
    scalar, scale = few and torch.tensor([0.6]), 1.0 if is_plain else 0.7
    want_sum, want = rows_of(MAX_ROWS, width, torch.float32), rows_of(MAX_ROWS, width, torch.bfloat16)
    ends = {"bias": bias, "residual": residual, "scale": scale}
    tree_sum(parts, want_sum, width=width, **ends, **counted()).run()
    norms = {"scalar": scalar, "width": width, "eps": EPS, **counted()}
    rms_norm(want_sum, weight, want, residual=added, **norms).run()

    found_sum, found = rows_of(MAX_ROWS, width, torch.float32), rows_of(MAX_ROWS, width, torch.bfloat16)
    tree_norm(RankSum(parts=parts, out=found_sum, **ends), weight, found, added=added, **norms).run()
    assert found_sum[:ROWS, :width].isfinite().all()
    assert torch.equal(found_sum[:ROWS, :width], want_sum[:ROWS, :width])
    assert torch.equal(found[:ROWS, :width], want[:ROWS, :width])
    assert_untouched(found, ROWS, width)
    assert_untouched(found_sum, ROWS, width)
