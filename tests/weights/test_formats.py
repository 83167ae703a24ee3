from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.weights.formats.formats import (
    GROUP_ROWS,
    PANEL_ROWS,
    Format,
    pack,
    packed_rows,
    source_rows,
    unpack,
)

SHAPES = [(1, 1), (32, 2), (33, 7), (64, 64), (80, 136), (261, 81)]


def random_bits(shape: tuple[int, ...], format_: Format, seed: int = 0) -> np.ndarray:
    """Any bits at all: NaN payloads, infinities and denormals too."""
    rng = np.random.default_rng(seed)
    if format_ is Format.PANEL_BF16:
        return rng.integers(0, 2**16, shape, np.uint16)
    return rng.integers(0, 2**32, shape, np.uint32).view(np.float32)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("format_", [Format.PANEL_BF16, Format.PANEL_F32])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("experts", [1, 3])
def test_round_trip(shape: tuple[int, int], format_: Format, gated: bool, experts: int) -> None:
    """Each matrix of a weight by expert is packed as it would be alone."""
    values = random_bits((experts, 2 * shape[0], shape[1]), format_)
    packed = pack(values, format_, gated=gated)
    assert same_bits(unpack(packed, format_, values.shape, gated=gated), values)
    assert same_bits(packed, np.concatenate([pack(matrix, format_, gated=gated) for matrix in values]))


def test_panel_bf16_layout() -> None:
    """Element (n, k) lies at [n / 32][k / 2][n % 32][k % 2]; padding is zero."""
    w = np.arange(1, 40 * 5 + 1, dtype=np.uint16).reshape(40, 5)
    packed = pack(w, Format.PANEL_BF16)
    assert packed.shape == (2, 3, 32, 2)
    for n, k in np.ndindex(40, 5):
        assert packed[n // 32, k // 2, n % 32, k % 2] == w[n, k]
    assert np.count_nonzero(packed) == w.size


def test_panel_f32_layout() -> None:
    w = np.arange(1, 40 * 5 + 1, dtype=np.float32).reshape(40, 5)
    packed = pack(w, Format.PANEL_F32)
    assert packed.shape == (2, 6, 32)
    for n, k in np.ndindex(40, 5):
        assert packed[n // 32, k, n % 32] == w[n, k]
    assert np.count_nonzero(packed) == w.size


@pytest.mark.parametrize("width", [16, 40, 136])
def test_gated_layout(width: int) -> None:
    """Output i: gate in row 32 * (i / 16) + i % 16, up 16 rows later; weights and bias alike."""
    gate = np.arange(1, width + 1, dtype=np.float32)
    up = -gate
    both = np.concatenate([gate, up])
    bias = pack(both, Format.VECTOR_F32, gated=True)
    matrix = pack(both[:, None], Format.PANEL_F32, gated=True)
    rows = matrix[:, 0, :].reshape(-1)
    assert len(bias) == len(rows) == 32 * -(-width // 16)
    for i in range(width):
        at = 32 * (i // 16) + i % 16
        assert bias[at] == rows[at] == gate[i]
        assert bias[at + 16] == rows[at + 16] == up[i]
    assert np.count_nonzero(bias) == 2 * width


def test_vector_layout() -> None:
    packed = pack(np.array([1] * 40 + [2] * 3, np.float32), Format.VECTOR_F32)
    assert packed.shape == (64,)
    assert packed.tolist() == [1] * 40 + [2] * 3 + [0] * 21


@settings(deadline=None)
@given(width=st.integers(1, 200), first=st.integers(0, 6), more=st.integers(1, 10))
def test_every_row_has_one_place(width: int, first: int, more: int) -> None:
    """A slice tells the same as the whole."""
    assert GROUP_ROWS * 2 == PANEL_ROWS
    for gated in (False, True):
        height = 3 * packed_rows(2 * width, gated=gated)
        source = source_rows(2 * width, 0, height, gated=gated)
        assert sorted(source[source >= 0].tolist()) == list(range(6 * width))
        rows = slice(first * PANEL_ROWS, min((first + more) * PANEL_ROWS, height))
        if rows.start < rows.stop:
            some = source_rows(2 * width, rows.start, rows.stop, gated=gated)
            np.testing.assert_array_equal(some, source[rows])


def test_coded_formats_are_packed_as_what_they_encode() -> None:
    w = random_bits((40, 16), Format.PANEL_BF16)
    for format_ in (Format.PANEL_CODED4, Format.PANEL_CODED3):
        assert format_.plain is Format.PANEL_BF16
        packed = pack(w, format_)
        np.testing.assert_array_equal(packed, pack(w, Format.PANEL_BF16))
        np.testing.assert_array_equal(unpack(packed, format_, (40, 16)), w)
