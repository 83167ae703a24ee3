"""Decoding of blocks against the format's own library, on random bytes and on what it quantises."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from firelane.weights.gguf.blocks import DECODERS, decode
from firelane.weights.gguf.header import TYPES

WRITTEN = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def _type(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name]


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.filterwarnings("ignore:(invalid|overflow):RuntimeWarning")
def test_random_blocks_are_as_the_library_decodes_them(name: str) -> None:
    """Also those whose scales are infinite or no numbers."""
    known = next(t for t in TYPES.values() if t.name == name)
    blocks = np.random.default_rng(1).integers(0, 256, (300, known.nbytes), dtype=np.uint8)
    expected = gguf.quants.dequantize(blocks, _type(name)).reshape(300, known.size)
    np.testing.assert_array_equal(decode(name, blocks).values(), expected)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_the_library_quantises_is_near_the_numbers(name: str) -> None:
    values = np.random.default_rng(2).standard_normal((64, 96), np.float32)
    data = gguf.quants.quantize(values, _type(name))
    known = next(t for t in TYPES.values() if t.name == name)
    found = decode(name, data.reshape(-1, known.nbytes)).values().reshape(values.shape)
    np.testing.assert_allclose(found, values, atol=0.4 if "4" in name else 0.2)


def test_sizes_of_all_types_are_those_of_the_library() -> None:
    for number, known in TYPES.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (known.size, known.nbytes)
        assert _type(known.name) == number


def test_codes_fit_their_groups() -> None:
    for name in DECODERS:
        known = next(t for t in TYPES.values() if t.name == name)
        coded = decode(name, np.zeros((2, known.nbytes), np.uint8))
        assert coded.codes.shape == (2, known.size)
        assert known.size % coded.scales.shape[1] == 0
        assert coded.minima is None or coded.minima.shape == coded.scales.shape
