"""GatedLinear: against NumPy at awkward shapes, and the same bits in every form, config and company."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matrices_harness import coded_matrix, plain_matrix, random_bits, uncoded_matrix
from products_harness import FORMS, assert_near, gated_reference, random_rows, run_gated

from firelane.backends.cuda.device.linear_config import LinearConfig
from firelane.program.ops import GELU_TANH, SILU, Gate

SMALL = LinearConfig(row_tile=16)
CONFIGS = {
    "wide": LinearConfig(row_tile=64, features=128, k_tile=64),
    "late escapes": LinearConfig(row_tile=64),
    "halves": LinearConfig(row_tile=256, k_tile=64, warps=8, transpose=True),
    "decode first": LinearConfig(row_tile=32, decode_first=True),
}

GATES = {
    "gelu": GELU_TANH,
    "sharp": Gate(alpha=1.702),
    "limits": Gate(alpha=1.702, limit=0.7, up_offset=1.0),
}


def gate_and_up(rows: int, k: int) -> list[np.ndarray]:
    return [random_bits(rows, k, seed=rows), random_bits(rows, k, seed=k)]


def bias_of(rows: int) -> torch.Tensor:
    return torch.randn(2 * rows, generator=torch.Generator().manual_seed(rows))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("rows", "k", "count", "max_rows"),
    [(72, 80, 1, 1), (130, 104, 3, 20), (128, 512, 17, 18)],
)
def test_equals_numpy(form: str, rows: int, k: int, count: int, max_rows: int) -> None:
    parts, x, bias = gate_and_up(rows, k), random_rows(count, k, max_rows=max_rows), bias_of(rows)
    found = run_gated(FORMS[form](parts), x, SMALL, bias)
    wanted = gated_reference(x.values, parts, bias.numpy())
    assert_near(found, wanted)
    assert_near(run_gated(FORMS[form](parts), x, SMALL, bias, torch.bfloat16), wanted, 2.0**-8)


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
def test_gates(gate: Gate) -> None:
    """The same bits where the product is finished in slices, and where another kernel has made it."""
    parts, x, bias = gate_and_up(72, 104), random_rows(3, 104, max_rows=5), bias_of(72)
    found = run_gated(plain_matrix(parts), x, SMALL, bias, gate=gate)
    assert_near(found, gated_reference(x.values, parts, bias.numpy(), gate))
    np.testing.assert_array_equal(
        run_gated(coded_matrix(parts), x, CONFIGS["halves"], bias, gate=gate), found
    )
    library = LinearConfig(row_tile=64, decode_first=True, library=True)
    assert_near(run_gated(plain_matrix(parts), x, library, bias, gate=gate), found)


def test_float32() -> None:
    rng = np.random.default_rng(1)
    gate, up = (rng.standard_normal((72, 200)).astype(np.float32) for _ in range(2))
    x = random_rows(17, 200, max_rows=18, dtype=torch.float32)
    matrix = uncoded_matrix([gate, up])
    found = run_gated(matrix, x, SMALL)
    a, b = x.values @ gate.T, x.values @ up.T
    assert_near(found, a * (0.5 + 0.5 * np.tanh(0.5 * a)) * b)
    np.testing.assert_array_equal(run_gated(matrix, x, CONFIGS["halves"]), found)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("rows", [72, 130])
def test_same_bits_in_every_config_and_form(config: LinearConfig, rows: int) -> None:
    parts, x, bias = gate_and_up(rows, 300), random_rows(19, 300, max_rows=33), bias_of(rows)
    wanted = run_gated(plain_matrix(parts), x, SMALL, bias)
    for matrix in (plain_matrix(parts), coded_matrix(parts)):
        np.testing.assert_array_equal(run_gated(matrix, x, config, bias), wanted)


@pytest.mark.parametrize("crowded", [0, 1], ids=["gate", "up"])
def test_lists_of_escapes_of_different_lengths(crowded: int) -> None:
    """They are walked side by side: one takes several turns of the loop, the other is empty."""
    rng = np.random.default_rng(0)
    parts = [0x3F80 + rng.integers(0, 128, (64, 512)).astype(np.uint16) for _ in range(2)]
    parts[crowded].flat[rng.choice(64 * 512, 150, replace=False)] = 0x0C8F
    x = random_rows(5, 512)
    wanted = run_gated(plain_matrix(parts), x, SMALL)
    assert_near(wanted, gated_reference(x.values, parts, np.zeros(128, np.float32)))
    for config in CONFIGS.values():
        np.testing.assert_array_equal(run_gated(coded_matrix(parts), x, config), wanted)


def test_a_row_is_the_same_in_any_company() -> None:
    matrix = coded_matrix(gate_and_up(100, 256))
    wanted = run_gated(matrix, random_rows(1, 256, seed=5), SMALL)
    for count, max_rows in ((2, 2), (17, 40)):
        found = run_gated(matrix, random_rows(count, 256, max_rows=max_rows, seed=5), SMALL)
        np.testing.assert_array_equal(found[:1], wanted)


def test_an_empty_step_writes_nothing() -> None:
    matrix = plain_matrix(gate_and_up(72, 128))
    assert run_gated(matrix, random_rows(0, 128, max_rows=20), SMALL).size == 0


@pytest.mark.parametrize("gate", [SILU, GELU_TANH, Gate(limit=7000.0)], ids=["silu", "gelu", "limit"])
def test_gates_far_out_do_not_overflow(gate: Gate) -> None:
    weights = np.zeros((72, 128), np.float32)
    weights[0], weights[1] = 50, -50
    x = random_rows(1, 128, dtype=torch.float32)
    x.x[:, :128] = 1
    found = run_gated(uncoded_matrix([weights, np.ones_like(weights)]), x, SMALL, gate=gate)
    np.testing.assert_array_equal(found[0, :3], [6400 * 128, 0, 0])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [1, 70, 100])
def test_library(form: str, count: int) -> None:
    """In pieces of 64 rows, of which a step has some, one in part."""
    parts, x, bias = gate_and_up(72, 104), random_rows(count, 104, max_rows=100), bias_of(72)
    config = LinearConfig(row_tile=64, decode_first=True, library=True, transpose=count > 1)
    found = run_gated(FORMS[form](parts), x, config, bias)
    assert_near(found, gated_reference(x.values, parts, bias.numpy()))
