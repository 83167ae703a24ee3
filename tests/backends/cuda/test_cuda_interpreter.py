"""The interpreter computes what the device does: bf16 as torch, inline PTX as Python's integers."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.launch import Launch

N = 1024


@triton.jit
def _bf16_arithmetic(x, y, out, KIND: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    if KIND == "add":
        c = a + b
    elif KIND == "multiply":
        c = a * b
    elif KIND == "subtract":
        c = a - b
    elif KIND == "negate":
        c = -a
    elif KIND == "absolute":
        c = tl.abs(a)
    elif KIND == "greater":
        c = tl.where(a > b, a, b)
    else:
        c = a * 3.0 + 1.0
    tl.store(out + at, c)


BF16_KINDS = {
    "add": lambda a, b: a + b,
    "multiply": lambda a, b: a * b,
    "subtract": lambda a, b: a - b,
    "negate": lambda a, _: -a,
    "absolute": lambda a, _: a.abs(),
    "greater": lambda a, b: torch.where(a > b, a, b),
    "scalars": lambda a, _: a * 3.0 + 1.0,
}


@pytest.mark.parametrize("kind", BF16_KINDS)
def test_bf16_arithmetic_is_torchs_bit_for_bit(kind: str) -> None:
    x, y = _random(0).bfloat16(), _random(1).bfloat16()
    out = torch.full_like(x, torch.nan)
    Launch(
        kernel=_bf16_arithmetic, grid=(1,), arguments={"x": x, "y": y, "out": out, "KIND": kind, "N": N}
    ).run()
    assert torch.equal(out, BF16_KINDS[kind](x, y))


def _random(seed: int) -> Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(seed))
