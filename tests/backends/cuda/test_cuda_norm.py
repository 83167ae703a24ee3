"""RMSNorm and Cast, of whole values and of parts, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from firelane.backends.cuda.kernels.norms.norm import rms_norm
from firelane.backends.cuda.kernels.rows.cast import cast
from firelane.backends.cuda.step.tables import NUM_COUNTS, ROWS, TOKENS
from tests.backends.cuda.rows_harness import assert_untouched, bits, filled, random_split_k, rows_of, sum_of

EPS = 1e-5
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 2.0**-8}


def counts_of(count: int, rows: int) -> torch.Tensor:
    counts = torch.full((NUM_COUNTS,), 77, dtype=torch.int32)
    counts[count] = rows
    return counts


def run(x, weight, *, width, rows, max_rows, dtype=torch.bfloat16, count=TOKENS, **options):
    out = rows_of(max_rows, width, dtype)
    launch = rms_norm(
        x,
        weight,
        out,
        width=width,
        eps=EPS,
        counts=counts_of(count, rows),
        count=count,
        max_rows=max_rows,
        **options,
    )
    launch.run()
    return out


def expected(x, weight):
    return x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + np.float32(EPS)) * weight


def weight_of(rng, width):
    return torch.from_numpy((1 + 0.2 * rng.standard_normal(width)).astype(np.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize(("width", "rows", "max_rows"), [(80, 3, 4), (104, 5, 70), (64, 1, 1), (4096, 2, 3)])
def test_rows_are_normalised_as_the_reference_says(width, rows, max_rows, dtype):
    rng = np.random.default_rng(width)
    x, weight = rng.standard_normal((rows, width)).astype(np.float32) * 3, weight_of(rng, width)
    out = run(filled(x, max_rows), weight, width=width, rows=rows, max_rows=max_rows, dtype=dtype)
    want = expected(x, weight.numpy())
    assert np.abs(out[:rows, :width].float().numpy() - want).max() <= BOUNDS[dtype] * np.abs(want).max()
    assert_untouched(out, rows, width)


@pytest.mark.parametrize("max_rows", [4, 80], ids=["eager", "patient"])
@pytest.mark.parametrize("parts", [1, 3, 9])
def test_a_split_k_value_is_added_up_and_gives_the_same_bits(parts, max_rows):
    rng, rows, width = np.random.default_rng(parts), 3, 104
    split_k = random_split_k(rng, rows, width, max_rows=max_rows, count=parts)
    weight = weight_of(rng, width)
    out = run(split_k, weight, width=width, rows=rows, max_rows=max_rows, count=ROWS)
    total = sum_of(split_k, rows)
    np.testing.assert_array_equal(split_k.out[:rows, :width].numpy(), total)
    assert_untouched(split_k.out, rows, width)
    final = run(filled(total, max_rows), weight, width=width, rows=rows, max_rows=max_rows)
    assert torch.equal(bits(out), bits(final))


def test_the_sum_may_take_the_place_of_the_residual():
    rng, rows, width = np.random.default_rng(7), 2, 80
    split_k = random_split_k(rng, rows, width, max_rows=2)
    want = sum_of(split_k, rows)
    run(replace(split_k, out=split_k.residual), weight_of(rng, width), width=width, rows=rows, max_rows=2)
    np.testing.assert_array_equal(split_k.residual[:rows, :width].numpy(), want)


def test_a_sum_that_nobody_else_reads_is_not_written():
    rng, rows, width = np.random.default_rng(8), 2, 80
    split_k = random_split_k(rng, rows, width, max_rows=2, whole=False)
    weight = weight_of(rng, width)
    out = run(split_k, weight, width=width, rows=rows, max_rows=2, dtype=torch.float32)
    np.testing.assert_allclose(
        out[:, :width].numpy(), expected(sum_of(split_k, rows), weight.numpy()), rtol=1e-5
    )


@pytest.mark.parametrize("max_rows", [4, 80], ids=["eager", "patient"])
def test_no_rows_leave_everything_as_it_was(max_rows):
    split_k = random_split_k(np.random.default_rng(9), 0, 80, max_rows=max_rows)
    out = run(split_k, torch.ones(80), width=80, rows=0, max_rows=max_rows)
    assert_untouched(out, 0, 0)
    assert_untouched(split_k.out, 0, 0)


def test_a_row_does_not_depend_on_those_beside_it():
    rng, width = np.random.default_rng(10), 104
    x, weight = rng.standard_normal((90, width)).astype(np.float32), weight_of(rng, width)
    many = run(filled(x, 100), weight, width=width, rows=90, max_rows=100)
    one = run(filled(x[:1], 1), weight, width=width, rows=1, max_rows=1)
    assert torch.equal(bits(many[:1, :width]), bits(one[:1, :width]))


@pytest.mark.parametrize("has_weight", [True, False], ids=["weight", "bare"])
@pytest.mark.parametrize(("has_residual", "has_scalar"), [(True, False), (True, True), (False, True)])
def test_a_norm_behind_a_block_ends_in_the_stream(has_weight, has_residual, has_scalar):
    """From parts that nobody else reads, as from their sum."""
    rng, rows, width, max_rows = np.random.default_rng(12), 3, 104, 5
    split_k = replace(random_split_k(rng, rows, width, max_rows=max_rows, whole=False), scale=0.22)
    weight = weight_of(rng, width) if has_weight else None
    residual = filled(rng.standard_normal((rows, width)).astype(np.float32), max_rows)
    options = {
        "residual": residual if has_residual else None,
        "scalar": torch.tensor([0.7]) if has_scalar else None,
        "dtype": torch.float32,
    }
    out = run(split_k, weight, width=width, rows=rows, max_rows=max_rows, **options)
    total = sum_of(split_k, rows)
    want = expected(total, weight.numpy() if has_weight else np.float32(1))
    want += residual[:rows, :width].numpy() * np.float32(has_residual)
    want *= np.float32(0.7) if has_scalar else np.float32(1)
    assert np.abs(out[:rows, :width].numpy() - want).max() <= BOUNDS[torch.float32] * np.abs(want).max()
    assert_untouched(out, rows, width)
    final = run(filled(total, max_rows), weight, width=width, rows=rows, max_rows=max_rows, **options)
    assert torch.equal(bits(out), bits(final))


@pytest.mark.parametrize("width", [80, 1100])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "bare"])
def test_a_cast_rounds_what_it_adds_up(width, whole):
    rows, max_rows = 2, 4
    split_k = random_split_k(np.random.default_rng(11), rows, width, max_rows=max_rows, whole=whole)
    split_k = replace(split_k, scale=0.5)
    total, counts = sum_of(split_k, rows), counts_of(ROWS, rows)
    for x in (split_k, filled(total, max_rows)):
        out = rows_of(max_rows, width, torch.bfloat16)
        cast(x, out, width=width, counts=counts, count=ROWS, max_rows=max_rows).run()
        assert torch.equal(out[:rows, :width], torch.from_numpy(total).bfloat16())
        assert_untouched(out, rows, width)
    if whole:
        np.testing.assert_array_equal(split_k.out[:rows, :width].numpy(), total)
        assert_untouched(split_k.out, rows, width)
