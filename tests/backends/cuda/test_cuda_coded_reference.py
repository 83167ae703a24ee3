"""The coded form: which base a block has, what an escape is, and that nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices_harness import (
    DENORMAL,
    NEGATIVE_ZERO,
    coded_matrix,
    original_bits,
    padded,
    plain_matrix,
    random_bits,
)

from firelane.backends.cuda.device.shapes import ROW_BLOCK
from firelane.backends.cuda.weights import coded_reference as reference
from firelane.backends.cuda.weights.matrices import ESCAPE_SHARE, MAX_BLOCK_ESCAPES, ROW_SHIFT


def block_of(exponents: list[int], k: int = 128) -> np.ndarray:
    """One block with these exponents first, each with sign and mantissa set, zeros behind."""
    bits = np.zeros((ROW_BLOCK, k), np.uint16)
    bits.flat[: len(exponents)] = [0x8000 | e << 7 | 0x55 for e in exponents]
    return bits


@pytest.mark.parametrize(
    ("exponents", "base", "escapes"),
    [
        ([], 0, 0),
        ([1], 0, 0),
        ([15], 0, 0),
        ([16], 1, 0),
        ([254], 239, 0),
        ([100, 114], 99, 0),
        ([100, 115], 85, 1),  # two ranges are as good: the lower one
        ([100, 115, 115], 100, 1),
        ([0, 0, 0, 120], 105, 3),  # denormals are in no range
    ],
)
def test_base_of_a_block(exponents: list[int], base: int, escapes: int) -> None:
    bases, counts = reference.best_bases(reference.exponent_counts(block_of(exponents)))
    assert (bases.tolist(), counts.tolist()) == ([base], [escapes])


@given(st.lists(st.integers(0, 254), max_size=40))
def test_base_is_the_lowest_of_the_best(exponents: list[int]) -> None:
    bases, counts = reference.best_bases(reference.exponent_counts(block_of(exponents)))
    each = [sum(not b < e <= b + 15 for e in exponents) for b in range(240)]
    assert counts[0] == min(each)
    assert bases[0] == each.index(min(each))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from([128, 256, 640]))
def test_nothing_is_lost(seed: int, k: int) -> None:
    parts = [random_bits(100, k, seed=seed), random_bits(7, k, seed=seed + 1, scale=3.0)]
    whole = padded(parts)
    plain, coded = plain_matrix(parts), coded_matrix(parts)
    np.testing.assert_array_equal(original_bits(plain), whole)
    np.testing.assert_array_equal(original_bits(coded), whole)
    assert coded.nbytes < plain.nbytes


def test_escapes_are_listed_by_row_then_input_and_zero_in_the_matrix() -> None:
    bits = padded([random_bits(128, 256)])
    split = reference.split(bits)
    assert split is not None
    assert len(split.where) > 20
    for block in range(2):
        part = slice(int(split.starts[block]), int(split.starts[block + 1]))
        where = split.where[part]
        assert (np.diff(where) > 0).all()
        row, at = block * ROW_BLOCK + (where >> ROW_SHIFT), where & 0xFFFFFF
        np.testing.assert_array_equal(split.values[part], bits[row, at])
        assert (split.bits[row, at] == 0).all()


def test_zeros_are_no_escapes_and_denormals_are() -> None:
    bits = block_of([120] * 100)
    bits[3, 5], bits[3, 6] = NEGATIVE_ZERO, DENORMAL
    split = reference.split(bits)
    assert split is not None
    assert split.where.tolist() == [3 << ROW_SHIFT | 6]
    assert split.bits[3, 5] == NEGATIVE_ZERO
    low, codes = reference.encode(split.bits, split.bases)
    assert low[3, 5] == 0x80
    assert codes[3, 5] == 0


def test_codes_lie_half_a_tile_apart() -> None:
    bits = np.zeros((ROW_BLOCK, 256), np.uint16)
    bits[0, 128 + 7], bits[0, 128 + 7 + 64] = 101 << 7, 115 << 7 | 0x8001
    low, codes = reference.encode(bits, np.array([100], np.uint8))
    assert codes[0, 64 + 7] == 1 | 15 << 4
    assert np.count_nonzero(codes) == 1
    assert low[0, 128 + 7 + 64] == 0x81


def test_matrix_with_too_many_escapes_has_no_range() -> None:
    size = ROW_BLOCK * 512
    most = size // ESCAPE_SHARE
    enough, too_many = ([90] * n + [120] * 2000 for n in (most, most + 1))
    assert reference.split(block_of(enough, 512)) is not None
    assert reference.split(block_of(too_many, 512)) is None


def test_no_block_has_too_many() -> None:
    assert reference.has_range(np.array([MAX_BLOCK_ESCAPES, 0]), 1 << 24)
    assert not reference.has_range(np.array([MAX_BLOCK_ESCAPES + 1, 0]), 1 << 24)
