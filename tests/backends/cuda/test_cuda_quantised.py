"""Quantised weights on the device: every code is decoded to the bf16 that it stands for, and products are
those of the bf16 matrix, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matrices_harness import bits_of, no_escapes, plain_matrix, uncoded_matrix
from products_harness import random_rows, run_gated, run_linear
from quantised_harness import Form, Quantised, quantised_matrix, random_part

from firelane.backends.cuda.device.linear_config import LinearConfig
from firelane.backends.cuda.kernels.matmul.quantised import decode_matrix
from firelane.backends.cuda.loading.packing import by_block
from firelane.backends.cuda.weights import coded_reference as reference
from firelane.backends.cuda.weights.matrices import FP4, FP8, INT4, INT8, QuantisedMatrix
from firelane.backends.cuda.weights.quantised_weights import half_bytes, narrowed
from tests.backends.cuda.host_device import poison

F32 = torch.float32
FORMS = [
    Form(numbers=INT4, group_size=32),
    Form(numbers=INT4, group_size=64, minima=True),
    Form(numbers=INT4, group_size=16, scales=F32, minima=True),
    Form(numbers=INT4, group_size=32, scales=torch.int8, minima=True, units=True),
    Form(numbers=INT8, group_size=16, scales=torch.int8, units=True),
    Form(numbers=INT8, group_size=16, scales=F32),
    Form(numbers=INT8, group_size=128, scales=F32, minima=True),
    Form(numbers=FP8, group_size=640, scales=F32),
    Form(numbers=FP4, group_size=32, scales=torch.uint8),
]


def decoded(matrix: QuantisedMatrix) -> np.ndarray:
    size = matrix.padded_rows * matrix.padded_k
    scratch = poison(torch.empty(size + 7, dtype=torch.bfloat16))
    launch, plain = decode_matrix(matrix, scratch)
    launch.run()
    assert scratch[size:].isnan().all()
    assert (plain.rows, plain.k, plain.escapes) == (matrix.rows, matrix.k, matrix.escapes)
    return bits_of(plain.data)


@pytest.mark.parametrize("minima", [False, True])
@pytest.mark.parametrize("numbers", [INT4, INT8, FP8, FP4])
def test_every_code(numbers: str, minima: bool) -> None:
    """Each with 128 scales of all kinds, two groups a row."""
    form = Form(numbers=numbers, group_size=128, scales=F32, minima=minima)
    rng = np.random.default_rng(3)
    every = np.arange(16 if numbers in (INT4, FP4) else 256, dtype=np.uint8)
    codes = np.tile(every, (64, 16))[:, :256].copy()
    codes[codes & 127 == 127] = 1  # no number, of e4m3
    exponents = rng.integers(-30, 1, (64, 2)) - (1 if numbers in (FP4, FP8) else 0)
    scales = np.ldexp(rng.standard_normal((64, 2)), exponents).astype(np.float32)
    least = (scales * rng.standard_normal((64, 2)) * 9).astype(np.float32) if minima else None
    part = Quantised(form=form, codes=codes, scales=scales, minima=least)
    matrix = QuantisedMatrix(
        data=torch.from_numpy(half_bytes(codes) if numbers in (INT4, FP4) else codes),
        scales=by_block(torch.from_numpy(scales)),
        minima=None if least is None else by_block(torch.from_numpy(least)),
        units=None,
        bounds=None,
        numbers=numbers,
        rows=64,
        k=256,
        escapes=no_escapes(torch.bfloat16, 64),
    )
    assert (matrix.padded_k, matrix.group_size) == (256, 128)
    np.testing.assert_array_equal(decoded(matrix), part.bits)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_escapes_are_zero(form: Form) -> None:
    part = random_part(form, 130, 768 if form.units else 640, seed=1)
    matrix = quantised_matrix([part])
    split = reference.split(np.pad(part.bits, ((0, 62), (0, 0))))
    assert split is not None
    assert len(split.where) > 10
    found = decoded(matrix)
    np.testing.assert_array_equal(found & 0x7FFF, split.bits & 0x7FFF)
    same = found[split.bits & 0x7FFF != 0] == split.bits[split.bits & 0x7FFF != 0]
    assert same.all()


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(
    "config",
    [
        LinearConfig(row_tile=16, parts=True),
        LinearConfig(row_tile=32, decode_first=True, transpose=True, features=128, k_tile=64),
    ],
    ids=["fused", "decoded"],
)
def test_products_are_those_of_the_bf16_matrix(form: Form, config: LinearConfig) -> None:
    part = random_part(form, 70, 1280 if form.group_size == 640 else 1024, seed=2)
    rows = random_rows(3, part.codes.shape[1], max_rows=5)
    wanted = run_linear(plain_matrix([part.bits]), rows, LinearConfig(row_tile=16))
    np.testing.assert_array_equal(run_linear(quantised_matrix([part]), rows, config), wanted)


@pytest.mark.parametrize("form", [FORMS[0], FORMS[3], FORMS[-1]], ids=str)
def test_gated_products_are_those_of_the_bf16_matrix(form: Form) -> None:
    parts = [random_part(form, 40, 256, seed=seed) for seed in (4, 5)]
    rows = random_rows(3, 256)
    wanted = run_gated(plain_matrix([part.bits for part in parts]), rows, LinearConfig(row_tile=16))
    found = run_gated(quantised_matrix(parts), rows, LinearConfig(row_tile=16))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("form", [FORMS[0], FORMS[2], FORMS[-1]], ids=str)
def test_inputs_that_fill_no_tile(form: Form) -> None:
    """Inputs of gpt-oss's experts fill no tile either: no range is looked for then."""
    part = random_part(form, 64, 224, seed=6)
    rows = random_rows(2, 224)
    wanted = run_linear(uncoded_matrix([part.bits]), rows, LinearConfig(row_tile=16))
    np.testing.assert_array_equal(
        run_linear(quantised_matrix([part]), rows, LinearConfig(row_tile=16)), wanted
    )


def test_scales_are_kept_in_as_few_bits_and_groups_as_lose_nothing() -> None:
    halves = torch.rand(4, 6).half().float()
    powers = torch.tensor([[1.0, 0.5, 0.0], [2.0**-126, 2.0**127, 4.0]])
    assert narrowed(powers, None)[0].tolist() == [[127, 126, 0], [1, 254, 129]]
    assert narrowed(-powers, None)[0].dtype is torch.bfloat16
    scales, minima = narrowed(halves, None)
    assert (scales.dtype, scales.shape, minima) == (torch.float16, (4, 6), None)
    wide = halves.repeat_interleave(4, dim=1)
    scales, minima = narrowed(wide, wide * 3)
    assert (scales.dtype, scales.shape) == (torch.float16, (4, 6))
    assert minima is not None
    assert (minima.dtype, minima.shape) == (torch.float32, (4, 6))
    assert torch.equal(scales.float(), halves)
    assert narrowed(halves * 2.0**-60, None)[0].dtype is torch.float32
    assert narrowed(halves.bfloat16().float() * 2.0**-60, None)[0].dtype is torch.bfloat16
    different = wide.clone()
    different[3, 5] += 1
    assert narrowed(wide, different)[0].shape == (4, 24)
