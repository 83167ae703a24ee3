"""x transposed."""

from __future__ import annotations

import pytest
import torch
from matrices_harness import plain_matrix, random_bits, uncoded_matrix
from products_harness import random_rows, room_for_transposed

from firelane.backends.cuda.kernels.matmul.transpose import are_worth, transpose
from firelane.backends.cuda.step.tables import ROWS


@pytest.mark.parametrize(("count", "max_rows", "k"), [(1, 1, 7), (70, 70, 128), (65, 300, 200), (0, 5, 64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
def test_turn(count: int, max_rows: int, k: int, dtype: torch.dtype) -> None:
    rows = random_rows(count, k, max_rows=max_rows, dtype=dtype)
    buffer = room_for_transposed(rows)
    launch, transposed = transpose(rows.x, buffer, k=k, counts=rows.counts, count=ROWS, max_rows=max_rows)
    launch.run()
    assert transposed.shape == (k, 512 if max_rows > 256 else 256)
    assert torch.equal(transposed[:, :count], rows.x[:count, :k].t())
    assert transposed[:, -(-count // 64) * 64 :].isnan().all()
    assert buffer[transposed.numel() :].isnan().all()


def test_no_list_is_not_worth_it() -> None:
    bits = random_bits(64, 128)
    assert are_worth(plain_matrix([bits]).escapes)
    assert not are_worth(uncoded_matrix([bits]).escapes)
