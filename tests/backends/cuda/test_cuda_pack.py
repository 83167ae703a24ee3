"""Packing on the device equals the NumPy reference bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices_harness import DENORMAL, NEGATIVE_ZERO, bf16, bits_of, escapes_of, padded, random_bits

from firelane.backends.cuda.kernels import pack
from firelane.backends.cuda.weights import coded_reference as reference
from firelane.backends.cuda.weights.matrices import CodedMatrix, Escapes, PlainMatrix
from tests.backends.cuda.host_device import poison

Bits = np.ndarray


def hard(rows: int, k: int, seed: int) -> Bits:
    """Whole rows, whole blocks and single places full of escapes, zeros and denormals."""
    bits = padded([random_bits(rows, k, seed=seed, share=0.0005)])
    bits[3, :12] = 0x7F00
    bits[-1, -1] = bits[0, 0] = bits[1, 63] = bits[1, 64] = DENORMAL
    bits[5] = NEGATIVE_ZERO
    return bits


def all_zero(rows: int, k: int, seed: int) -> Bits:
    del seed
    return np.zeros((rows, k), np.uint16)


def find(bits: Bits) -> np.ndarray:
    found = poison(torch.empty(3, len(bits) // 64, dtype=torch.int32))
    pack.find_ranges(bf16(bits), found).run()
    return found.numpy()


def lists_for(split: reference.SplitMatrix) -> Escapes:
    """Room for the lists; only `starts` is known."""
    escapes = escapes_of(split)
    return Escapes(starts=escapes.starts, where=poison(escapes.where), values=poison(escapes.values))


def assert_lists(escapes: Escapes, split: reference.SplitMatrix) -> None:
    count = len(split.where)
    np.testing.assert_array_equal(escapes.where.numpy()[:count], split.where)
    np.testing.assert_array_equal(bits_of(escapes.values)[:count], split.values)


@pytest.mark.parametrize("make", [hard, all_zero])
@pytest.mark.parametrize(("rows", "k"), [(64, 128), (192, 256), (64, 640)])
def test_packing_equals_the_reference(make: Callable[..., Bits], rows: int, k: int) -> None:
    bits = make(rows, k, 1)
    bases, counts = reference.best_bases(reference.exponent_counts(bits))
    found = find(bits)
    np.testing.assert_array_equal(found[pack.BASE], bases)
    np.testing.assert_array_equal(found[pack.ESCAPES], counts)
    assert (found[pack.INFINITE] == 0).all()

    split = reference.split(bits)
    assert split is not None
    plain = PlainMatrix(data=bf16(bits.copy()), rows=rows, k=k, escapes=lists_for(split))
    pack.split(plain, torch.from_numpy(bases)).run()
    np.testing.assert_array_equal(bits_of(plain.data), split.bits)
    assert_lists(plain.escapes, split)

    coded = CodedMatrix(
        low=poison(torch.empty(rows, k, dtype=torch.uint8)),
        codes=poison(torch.empty(rows, k // 2, dtype=torch.uint8)),
        bases=torch.from_numpy(bases),
        rows=rows,
        k=k,
        escapes=lists_for(split),
    )
    pack.encode(bf16(bits), coded).run()
    low, codes = reference.encode(split.bits, split.bases)
    np.testing.assert_array_equal(coded.low.numpy(), low)
    np.testing.assert_array_equal(coded.codes.numpy(), codes)
    assert_lists(coded.escapes, split)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 254), max_size=30))
def test_base_is_the_reference_s(exponents: list[int]) -> None:
    """Ties, ranges at both ends of the range, denormals."""
    bits = np.zeros((64, 128), np.uint16)
    bits.flat[: len(exponents)] = [0x8001 | e << 7 for e in exponents]
    bases, counts = reference.best_bases(reference.exponent_counts(bits))
    assert find(bits)[:2].tolist() == [bases.tolist(), counts.tolist()]


def test_infinite_weights_are_counted() -> None:
    bits = padded([random_bits(128, 128)])
    bits[70, 3], bits[71, 127], bits[127, 0] = 0x7F80, 0xFF80, 0x7FC1
    assert find(bits)[pack.INFINITE].tolist() == [0, 3]


def test_infinite_floats_are_counted() -> None:
    values = np.zeros((128, 128), np.float32)
    values[0, 0], values[0, 1], values[100, 127], values[3, 3] = np.inf, -np.inf, np.nan, 3e38
    found = poison(torch.empty(3, 2, dtype=torch.int32))
    pack.count_infinite(torch.from_numpy(values), found).run()
    assert found[pack.INFINITE].tolist() == [2, 1]
