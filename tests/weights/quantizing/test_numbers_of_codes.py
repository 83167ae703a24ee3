"""Codes and scales: read by the library of the format, near the numbers, and the same compiled or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme

from firelane.program.recipes import widened
from firelane.weights.formats.bf16 import bf16_bits
from firelane.weights.quantized.numbers import E2M1
from firelane.weights.quantizing.integers import quantize_integers
from firelane.weights.quantizing.native import quantize_library
from firelane.weights.quantizing.parts import e2m1_codes, e4m3_codes, parts_of, quantize_rows
from firelane.weights.quantizing.schemes import SCHEMES

TORCH = {
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
}
MOST_ERROR = {
    "int8": 0.008,
    "int4-g32": 0.09,
    "int4-g128": 0.105,
    "fp8": 0.028,
    "fp8-block": 0.028,
    "mxfp4": 0.12,
}
PRESETS = {"int4-g128": "W4A16", "fp8": "FP8_DYNAMIC", "fp8-block": "FP8_BLOCK", "mxfp4": "MXFP4A16"}


def numbers(rows: int, k: int) -> np.ndarray:
    values = np.random.default_rng(0).standard_normal((rows, k), np.float32) * np.float32(0.02)
    values[3], values[4], values[5, 7] = 0, values[4] * np.float32(1e-36), 0.15
    return values


@pytest.mark.parametrize("name", SCHEMES)
def test_the_formats_own_library_reads_the_same_numbers(name: str) -> None:
    scheme, (n, k) = SCHEMES[name], (200, 384)
    values = numbers(n, k)
    found = quantize_rows(values, scheme)
    config = QuantizationConfig.model_validate(scheme.config(["Linear"], ["lm_head"]))
    stored = {"weight_shape": torch.tensor([n, k])} if scheme.numbers == "int" else {}
    for part, info in parts_of(scheme, n, k).items():
        if part in found.parts:
            assert found.parts[part].shape == info.shape
            stored[part] = torch.from_numpy(np.ascontiguousarray(found.parts[part])).view(TORCH[info.dtype])
    reader = BaseCompressor.get_value_from_registry(scheme.format)
    read = reader.decompress(stored, config.config_groups["group_0"])["weight"].float().numpy()
    np.testing.assert_array_equal(read, widened(bf16_bits(found.values)))
    assert np.linalg.norm(found.values - values) < MOST_ERROR[name] * np.linalg.norm(values)
    assert not found.values[3].any()


@pytest.mark.parametrize("name", PRESETS)
def test_settings_are_the_presets_of_the_library(name: str) -> None:
    config = QuantizationConfig.model_validate(SCHEMES[name].config(["Linear"], []))
    found, expected = config.config_groups["group_0"], preset_name_to_scheme(PRESETS[name], ["Linear"])
    assert found.weights == expected.weights
    assert found.input_activations == expected.input_activations


@pytest.mark.parametrize(("name", "k"), [("int8", 50), ("int8", 256), ("int4-g32", 96), ("int4-g128", 256)])
def test_compiled_and_plain_code_give_the_same_bits(name: str, k: int) -> None:
    library = quantize_library()
    assert library is not None
    plain, compiled = (quantize_integers(numbers(64, k), SCHEMES[name], lib) for lib in (None, library))
    np.testing.assert_array_equal(plain.codes, compiled.codes)
    np.testing.assert_array_equal(plain.scales, compiled.scales)


def test_no_other_ratio_has_a_smaller_error() -> None:
    values, scheme = numbers(8, 64), SCHEMES["int4-g32"]
    found = quantize_integers(values, scheme)
    best = ((found.values() - values) ** 2).reshape(8, 2, 32).sum(axis=2)
    largest = np.abs(values).reshape(8, 2, 32).max(axis=2)
    for ratio in (1.0, 0.9, 0.8, 0.7, 0.6):
        scale = widened(bf16_bits((largest / 7 * ratio).astype(np.float32)))[:, :, None]
        groups = values.reshape(8, 2, 32)
        codes = np.clip(np.rint(np.divide(groups, scale, where=scale > 0, out=np.zeros_like(groups))), -8, 7)
        assert (best <= ((codes * scale - groups) ** 2).sum(axis=2) * 1.0001).all()


def test_floats_of_eight_bits_are_torchs() -> None:
    middles = torch.arange(0, 4096) / 2048
    spread = torch.randn(20000, generator=torch.Generator().manual_seed(1)) * 2.0 ** torch.arange(
        -14, 6
    ).repeat(1000)
    values = torch.cat(
        [middles, -middles, spread.clamp(-448, 448), torch.tensor([448.0, 2**-10, 3 * 2**-10])]
    )
    expected = values.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    np.testing.assert_array_equal(e4m3_codes(values.numpy()), expected)
    assert e4m3_codes(np.array([1e9, -1e9], np.float32)).tolist() == [0x7E, 0xFE]


def test_floats_of_four_bits_are_the_nearest() -> None:
    assert e2m1_codes(E2M1).tolist() == list(range(16))
    middles = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 100], np.float32)
    assert e2m1_codes(middles).tolist() == [0, 2, 2, 4, 4, 6, 6, 7]
    assert e2m1_codes(-middles).tolist() == [8, 10, 10, 12, 12, 14, 14, 15]


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(name: str, bad: float) -> None:
    values = numbers(128, 128)
    values[9, 9] = bad
    with pytest.raises(ValueError, match="not finite"):
        quantize_rows(values, SCHEMES[name])
    library = quantize_library()
    assert library is not None
    if SCHEMES[name].numbers == "int":
        with pytest.raises(ValueError, match="not finite"):
            quantize_integers(values, SCHEMES[name], library)
