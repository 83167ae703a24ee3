"""Grouped formats: codes and scales in panels, decoded to the very bf16 numbers that they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from firelane.weights.bf16 import bf16_bits
from firelane.weights.codes import Codes, stacked
from firelane.weights.formats import FORMAT_OF, GROUPINGS, Format, Grouping, to_panels
from firelane.weights.grouped import decode, encode, fits, fitted, panel_bytes

FORMATS = list(GROUPINGS)


def random_codes(grouping: Grouping, rows: int = 64, k: int = 96, seed: int = 0) -> Codes:
    """Of scales with as many bits as products of two stored numbers have."""
    rng = np.random.default_rng(seed)
    low, high = (0, 16) if grouping.minima and grouping.bits == 4 else (-8, 8)
    low, high = (-128, 128) if grouping.bits == 8 else (low, high)
    shape = (rows, k // grouping.group)
    scales = rng.random(shape, np.float32).astype(np.float16) * rng.integers(1, 64, shape).astype(np.float32)
    minima = (scales * rng.integers(0, 64, shape)).astype(np.float32) if grouping.minima else None
    codes = rng.integers(low, high, (rows, k)).astype(np.int8)
    return Codes(codes, (scales * np.float32(1e-3)).astype(np.float16).astype(np.float32), minima)


@pytest.mark.parametrize("format_", FORMATS)
def test_panels_decode_to_the_rounded_numbers(format_: Format) -> None:
    grouping = GROUPINGS[format_]
    rows = random_codes(grouping)
    data = encode(rows, format_)
    assert len(data) == 2 * panel_bytes(format_, 96)
    expected = to_panels(bf16_bits(rows.values()))
    np.testing.assert_array_equal(decode(data, format_, 96), expected)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("other", FORMATS)
def test_what_is_joined_keeps_its_numbers(format_: Format, other: Format) -> None:
    """Codes of one format in the smallest that holds those of two."""
    joined = GROUPINGS[format_].joined(GROUPINGS[other])
    rows = random_codes(GROUPINGS[format_], seed=1)
    found = fitted(rows, joined)
    np.testing.assert_array_equal(bf16_bits(found.values()), bf16_bits(rows.values()))
    data = encode(found, FORMAT_OF[joined])
    np.testing.assert_array_equal(decode(data, FORMAT_OF[joined], 96), to_panels(bf16_bits(rows.values())))


def test_wider_groups_repeat_their_scales() -> None:
    rows = random_codes(Grouping(4, 32, minima=False), k=256)
    wide = Codes(rows.codes, rows.scales[:, :2])
    found = fitted(wide, Grouping(4, 32, minima=False))
    np.testing.assert_array_equal(found.values(), wide.values())
    assert found.scales.shape == (64, 8)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e37])
def test_scales_that_are_no_numbers_are_refused(bad: float) -> None:
    rows = random_codes(Grouping(8, 32, minima=False))
    rows.scales[3, 1] = bad
    with pytest.raises(ValueError, match="not finite"):
        encode(rows, Format.PANEL_INT8)


def test_bytes_that_are_no_panels_are_refused() -> None:
    data = encode(random_codes(GROUPINGS[Format.PANEL_INT4]), Format.PANEL_INT4)
    with pytest.raises(ValueError, match="no panel_int4 panels of 96 inputs"):
        decode(data[:-1], Format.PANEL_INT4, 96)


def test_inputs_have_to_be_whole_groups() -> None:
    assert fits(Format.PANEL_INT4, 96)
    assert not fits(Format.PANEL_INT4, 80)
    assert fits(Format.PANEL_INT8_16, 80)
    assert not fits(Format.PANEL_BF16, 96)


def test_rows_are_taken_and_stacked() -> None:
    first, second = (random_codes(Grouping(4, 32, minima=True), rows=8, seed=s) for s in (1, 2))
    both = stacked([first, second])
    assert np.array_equal(both.values(), np.concatenate([first.values(), second.values()]))
    taken = both.taken(np.array([9, -1, 0]))
    assert np.array_equal(taken.values()[0], second.values()[1])
    assert not taken.values()[1].any()
    assert len(taken.codes) == 3
