"""Linear: against NumPy at awkward shapes, and the same bits in every form, config and company."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices_harness import coded_matrix, plain_matrix, random_bits, true_values, uncoded_matrix
from products_harness import FORMS, assert_near, output, random_rows, run_linear

from firelane.backends.cuda.device.linear_config import LinearConfig
from firelane.backends.cuda.device.shapes import segments

SMALL = LinearConfig(row_tile=16)
CONFIGS = {
    "parts": LinearConfig(row_tile=16, parts=True),
    "wide parts": LinearConfig(row_tile=64, features=128, k_tile=64, parts=True, transpose=True),
    "slices": LinearConfig(row_tile=256, features=128, k_tile=64, warps=8, transpose=True),
    "narrow": LinearConfig(row_tile=32, k_tile=64),
    "decode first": LinearConfig(row_tile=64, features=128, decode_first=True),
}


def operands(rows: int, max_rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A bias, and a residual whose padding is NaN."""
    generator = torch.Generator().manual_seed(seed)
    residual = output(max_rows, rows)
    residual[:, :rows] = torch.randn(max_rows, rows, generator=generator)
    return torch.randn(rows, generator=generator), residual


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("rows", "k", "count", "max_rows"),
    [(72, 80, 1, 1), (331, 104, 3, 20), (128, 200, 17, 17), (72, 1024, 40, 70), (331, 512, 3, 5)],
)
def test_equals_numpy(form: str, rows: int, k: int, count: int, max_rows: int) -> None:
    bits, x = random_bits(rows, k, seed=k), random_rows(count, k, max_rows=max_rows)
    bias, residual = operands(rows, max_rows, seed=rows)
    found = run_linear(FORMS[form]([bits]), x, SMALL, bias, residual)
    assert_near(found, x.values @ true_values(bits).T + bias.numpy() + residual[:count, :rows].numpy())


@pytest.mark.parametrize("config", [SMALL, *CONFIGS.values()], ids=["small", *CONFIGS])
def test_float32(config: LinearConfig) -> None:
    weights = np.random.default_rng(1).standard_normal((72, 1024)).astype(np.float32)
    x = random_rows(17, 1024, max_rows=18, dtype=torch.float32)
    found = run_linear(uncoded_matrix([weights]), x, config)
    assert_near(found, x.values @ weights.T)
    np.testing.assert_array_equal(found, run_linear(uncoded_matrix([weights]), x, SMALL))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize(("rows", "k"), [(72, 2048), (200, 520)])
def test_same_bits_in_every_config_and_form(config: LinearConfig, rows: int, k: int) -> None:
    assert segments(rows, k) == {2048: 4, 520: 1}[k]
    bits, x = random_bits(rows, k, seed=7), random_rows(19, k, max_rows=33)
    bias, residual = operands(rows, 33, seed=rows)
    wanted = run_linear(plain_matrix([bits]), x, SMALL, bias, residual)
    for matrix in (plain_matrix([bits]), coded_matrix([bits])):
        np.testing.assert_array_equal(run_linear(matrix, x, config, bias, residual), wanted)


@settings(deadline=None, max_examples=8)
@given(
    rows=st.integers(1, 200),
    k=st.integers(1, 200) | st.just(1024),
    count=st.integers(0, 20),
    spare=st.integers(0, 20),
    config=st.builds(
        LinearConfig,
        row_tile=st.sampled_from([16, 32, 64]),
        features=st.sampled_from([64, 128]),
        k_tile=st.sampled_from([32, 64, 128]),
        parts=st.booleans(),
        decode_first=st.booleans(),
        transpose=st.booleans(),
    ),
)
def test_any_shape(rows: int, k: int, count: int, spare: int, config: LinearConfig) -> None:
    bits, x = random_bits(rows, k, share=0.001), random_rows(count, k, max_rows=max(1, count + spare))
    plain, coded = plain_matrix([bits]), coded_matrix([bits])
    found = run_linear(coded, x, config)
    np.testing.assert_array_equal(found, run_linear(plain, x, SMALL))
    assert_near(found, x.values @ true_values(bits).T)


def test_a_row_is_the_same_in_any_company() -> None:
    bits = random_bits(100, 1024, seed=3)
    matrix = coded_matrix([bits])
    wanted = run_linear(matrix, random_rows(1, 1024, seed=5), SMALL)
    for count, max_rows in ((2, 2), (17, 40)):
        found = run_linear(matrix, random_rows(count, 1024, max_rows=max_rows, seed=5), SMALL)
        np.testing.assert_array_equal(found[:1], wanted)


def test_an_empty_step_writes_nothing() -> None:
    matrix = plain_matrix([random_bits(72, 128)])
    for config in (SMALL, CONFIGS["parts"]):
        assert run_linear(matrix, random_rows(0, 128, max_rows=20), config).size == 0


def test_only_escapes() -> None:
    """Far more than one turn of the loop over a block's list takes, none of the next block."""
    bits = np.zeros((192, 256), np.uint16)
    rng = np.random.default_rng(0)
    inside = 0x3F80 + rng.integers(0, 128, (192, 256)).astype(np.uint16)
    bits[:64] = inside[:64]
    bits.flat[rng.choice(64 * 256, 150, replace=False)] = 0x0C8F  # of row block 0
    bits[191, 255] = 0xC0A1
    bits[128:, :200] = inside[128:, :200]
    bits[130, 7] = 0x0001
    x = random_rows(5, 256)
    wanted = run_linear(plain_matrix([bits]), x, SMALL)
    assert_near(wanted, x.values @ true_values(bits).T)
    for config in CONFIGS.values():
        np.testing.assert_array_equal(run_linear(coded_matrix([bits]), x, config), wanted)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("rows", "k"), [(72, 1024), (200, 104)])
def test_library(form: str, rows: int, k: int) -> None:
    bits, x = random_bits(rows, k, seed=k), random_rows(17, k, max_rows=40)
    bias, residual = operands(rows, 40, seed=rows)
    config = LinearConfig(row_tile=64, decode_first=True, library=True, transpose=k == 104)
    found = run_linear(FORMS[form]([bits]), x, config, bias, residual)
    assert_near(found, x.values @ true_values(bits).T + bias.numpy() + residual[:17, :rows].numpy())


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_scaled_product_has_the_same_bits_in_every_config(config: LinearConfig) -> None:
    """The bias is scaled, the residual is not."""
    bits, x = random_bits(72, 1024, seed=9), random_rows(3, 1024, max_rows=4)
    bias, residual = operands(72, 4, seed=9)
    wanted = run_linear(plain_matrix([bits]), x, SMALL, bias, residual, scale=0.22)
    scaled = np.float32(0.22) * (x.values @ true_values(bits).T + bias.numpy())
    assert_near(wanted, scaled + residual[:3, :72].numpy())
    found = run_linear(coded_matrix([bits]), x, config, bias, residual, scale=0.22)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("library", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_cap_is_put_on_the_whole_sum(form: str, library: bool) -> None:
    bits, x = random_bits(72, 1024, seed=9), random_rows(3, 1024, max_rows=4)
    bias, residual = operands(72, 4, seed=9)
    config = LinearConfig(row_tile=16, decode_first=library, library=library)
    found = run_linear(FORMS[form]([bits]), x, config, bias, residual, scale=0.5, softcap=1.5)
    wanted = 0.5 * (x.values @ true_values(bits).T + bias.numpy()) + residual[:3, :72].numpy()
    assert_near(found, 1.5 * np.tanh(wanted / 1.5))


def test_a_cap_does_not_overflow() -> None:
    weights = np.zeros((72, 128), np.float32)
    weights[:2] = [[50], [-50]]
    x = random_rows(1, 128, dtype=torch.float32)
    x.x[:, :128] = 1
    found = run_linear(uncoded_matrix([weights]), x, SMALL, softcap=30.0)
    np.testing.assert_array_equal(found[0, :3], [30, -30, 0])
