"""The mended interpreter: bf16 is torch's bit for bit, sums have one order, nothing warns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import InterpreterError

from firelane.backends.cuda.device.launch import Launch
from tests.backends.cuda.interpreter import bf16_bits, halving_sum, ordered_product

N = 1024


@triton.jit
def elementwise_kernel(x, y, out, KIND: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    if KIND == "add":
        c = a + b
    elif KIND == "subtract":
        c = a - b
    elif KIND == "multiply":
        c = a * b
    elif KIND == "divide":
        c = a / b
    elif KIND == "negate":
        c = -a
    elif KIND == "absolute":
        c = tl.abs(a)
    elif KIND == "maximum":
        c = tl.maximum(a, b)
    elif KIND == "where":
        c = tl.where(a > b, a, b)
    else:
        c = a * 3.0 + 1.0
    tl.store(out + at, c)


ELEMENTWISE = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
    "negate": lambda a, _: -a,
    "absolute": lambda a, _: a.abs(),
    "maximum": torch.maximum,
    "where": lambda a, b: torch.where(a > b, a, b),
    "numbers": lambda a, _: a * 3.0 + 1.0,
}


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_bf16_arithmetic_is_torchs(kind: str) -> None:
    x, y, out = _bf16(0), _bf16(1), torch.full((N,), torch.nan, dtype=torch.bfloat16)
    _run(elementwise_kernel, x=x, y=y, out=out, KIND=kind, N=N)
    assert _bits(out) == _bits(ELEMENTWISE[kind](x, y))


@triton.jit
def cast_kernel(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.int32])
def test_casts_to_bf16_round_to_nearest_even(source: torch.dtype) -> None:
    x = (_random(0) * 1000).to(source)
    out = torch.empty(N, dtype=torch.bfloat16)
    _run(cast_kernel, x=x, out=out, N=N)
    assert _bits(out) == _bits(x.bfloat16())


@pytest.mark.parametrize("to", [torch.float32, torch.float16, torch.int32])
def test_casts_from_bf16(to: torch.dtype) -> None:
    x = (_random(0) * 1000).bfloat16()
    out = torch.empty(N, dtype=to)
    _run(cast_kernel, x=x, out=out, N=N)
    assert torch.equal(out, x.to(to))


def test_rounding_of_every_kind_of_float32() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 100_000, np.uint32)
    special = [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x3F808000, 0x3F818000, 1, 0x807FFFFF]
    values = np.concatenate([bits, np.array(special, np.uint32)]).view(np.float32)
    values = values[~np.isnan(values)]
    expected = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(bf16_bits(values), expected)
    assert torch.tensor(bf16_bits(np.array([np.nan], np.float32)).view(np.int16)).view(torch.bfloat16).isnan()


@triton.jit
def dot_kernel(x, y, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TILE: tl.constexpr):
    m, n = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, K, TILE):
        k = start + tl.arange(0, TILE)
        a, b = tl.load(x + m * K + k[None, :]), tl.load(y + n * K + k[:, None])
        total = tl.dot(a, b, total, input_precision="ieee")
    tl.store(out + m * N + n, total)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dot_is_the_product_whatever_its_tiles(dtype: torch.dtype) -> None:
    x, y = _random(0).reshape(8, 128).to(dtype), _random(1).reshape(8, 128).to(dtype)
    results = [_dot(x, y, tile) for tile in (16, 64, 128)]
    assert torch.allclose(results[0], x.float() @ y.float().T, atol=1e-4)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[0][:, :2], _dot(x, y[:2], 64))


def test_dot_of_too_few_inputs_is_refused_as_the_compiler_does() -> None:
    x = _random(0).reshape(8, 128).bfloat16()
    with pytest.raises(InterpreterError, match="K >= 16"):
        _dot(x, x, 8)


def test_products_and_sums_do_not_depend_on_what_is_beside() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64, 96), np.float32), rng.standard_normal((96, 48), np.float32)
    zero = np.zeros((64, 48), np.float32)
    whole = ordered_product(a, b, zero)
    assert np.array_equal(whole[:3, 5:6], ordered_product(a[:3], b[:, 5:6], zero[:3, 5:6]))
    assert np.array_equal(halving_sum(a), [halving_sum(column) for column in a.T.copy()])
    assert np.allclose(halving_sum(a[:32]), a[:32].sum(axis=0), atol=1e-5)


@triton.jit
def sum_kernel(x, out, total, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    values = tl.load(x + m[:, None] * N + n[None, :])
    tl.store(out + m, tl.sum(values, axis=1))
    tl.store(out + M + n, tl.sum(values, axis=0))
    tl.store(out + M + N + m, tl.reshape(tl.sum(values, axis=1, keep_dims=True), (M,)))
    tl.store(total, tl.sum(values))


def test_sums_over_every_axis() -> None:
    x, out, total = torch.arange(128).reshape(8, 16), torch.empty(32).int(), torch.empty(1).int()
    _run(sum_kernel, x=x.int(), out=out, total=total, M=8, N=16)
    assert out.tolist() == [*x.sum(1).tolist(), *x.sum(0).tolist(), *x.sum(1).tolist()]
    assert total.item() == x.sum().item()


def test_a_sum_of_bf16_is_refused() -> None:
    with pytest.raises(InterpreterError, match="convert to float32 first"):
        _run(sum_kernel, x=_bf16(0), out=_bf16(1), total=_bf16(2), M=8, N=16)


@triton.jit
def loop_kernel(counts, x, out):
    largest = tl.full((16,), float("-inf"), tl.float32)
    for i in range(tl.load(counts), tl.load(counts + 1)):
        largest = tl.maximum(largest, tl.load(x + i * 16 + tl.arange(0, 16)))
    tl.store(out + tl.arange(0, 16), tl.exp(largest - tl.max(largest, 0)) * 1e38 * 1e38)


def test_loops_to_numbers_from_memory_and_nothing_warns_of_nan() -> None:
    """-inf - -inf, a maximum of NaN alone and an overflow: warnings are errors in these tests."""
    x, out = torch.full((4, 16), torch.nan), torch.zeros(16)
    _run(loop_kernel, counts=torch.tensor([1, 3], dtype=torch.int32), x=x, out=out)
    assert out.isnan().all()
    _run(loop_kernel, counts=torch.tensor([3, 3], dtype=torch.int32), x=x, out=out)
    assert out.isnan().all()
    _run(loop_kernel, counts=torch.tensor([0, 1], dtype=torch.int32), x=torch.ones(16), out=out)
    assert out.isinf().all()


@triton.jit
def condition_kernel(out, count):
    at = tl.arange(0, 16)
    tl.store(out + at, at, mask=(at < 5) & (tl.load(count) > 0))


@pytest.mark.parametrize(("count", "stored"), [(0, 0), (1, 5)])
def test_a_condition_masks_a_block(count: int, stored: int) -> None:
    out = torch.full((16,), -1, dtype=torch.int32)
    _run(condition_kernel, out=out, count=torch.tensor([count], dtype=torch.int32))
    assert out.tolist() == [*range(stored), *[-1] * (16 - stored)]


@triton.jit
def mask_kernel(x, out, limit, N: tl.constexpr):
    at = tl.arange(0, N)
    live = tl.load(limit) > 2
    tl.store(out + at, tl.load(x + at, mask=~(at < 3) & live, other=-1.0), mask=live)


@pytest.mark.parametrize("live", [True, False])
def test_a_mask_of_one_number_is_spread(live: bool) -> None:
    x, out = torch.arange(16.0), torch.zeros(16)
    _run(mask_kernel, x=x, out=out, limit=torch.tensor([5 if live else 0], dtype=torch.int32), N=16)
    assert out.tolist() == ([-1.0] * 3 + x.tolist()[3:] if live else [0.0] * 16)


def test_types_of_blocks_that_are_kept_are_still_told_apart() -> None:
    """interpreter_speed.py lets equal types share what they are made of."""
    four = tl.block_type(tl.float32, [4])
    assert four == tl.block_type(tl.float32, [tl.constexpr(4)])
    assert four != tl.block_type(tl.float32, [8])
    assert four != tl.block_type(tl.int32, [4])
    assert four.with_element_ty(tl.int32) == tl.block_type(tl.int32, [4])
    pointers = [tl.block_type(tl.pointer_type(tl.float32, space), [4]) for space in ("global", "shared")]
    assert pointers[0] != pointers[1]
    assert pointers[0] == tl.block_type(tl.pointer_type(tl.float32, "global"), [4])
    assert tl.float32 == tl.dtype("fp32")
    assert tl.float32 != tl.int32


def _dot(x: Tensor, y: Tensor, tile: int) -> Tensor:
    out = torch.full((len(x), len(y)), torch.nan)
    _run(dot_kernel, x=x, y=y, out=out, M=len(x), N=len(y), K=x.shape[1], TILE=tile)
    return out


def _run(kernel: Any, **arguments: Any) -> None:
    Launch(kernel=kernel, grid=(1,), arguments=arguments).run()


def _random(seed: int) -> Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(seed))


def _bf16(seed: int) -> Tensor:
    values = _random(seed).bfloat16()
    values[:4] = torch.tensor([torch.inf, -torch.inf, 0.0, 1e-40])
    return values.roll(seed)


def _bits(values: Tensor) -> list[int]:
    """NaN as one value, zero without a sign: Triton's versions negate 0.0 in two ways."""
    return (torch.where(values.isnan(), torch.nan, values) + 0.0).bfloat16().view(torch.int16).tolist()
