"""Grouped formats: codes and scales in panels, decoded to the very bf16 numbers that they stand for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from firelane.weights.formats.bf16 import bf16_bits
from firelane.weights.formats.codebooks import TABLES, Codebook
from firelane.weights.formats.coded_native import coded_library
from firelane.weights.formats.codes import Codes, TwoLevelScales, stacked
from firelane.weights.formats.formats import GROUPINGS, Format, Grouping, Heads, smallest_holding, to_panels
from firelane.weights.formats.grouped import decode, encode, fits, fitted, panel_bytes

FORMATS = list(GROUPINGS)
RANGES = {4: (-8, 8), 6: (-32, 32), 8: (-128, 128)}
"""The range of codes by their number of bits; codes of four bits with minima begin at 0."""


def random_codes(grouping: Grouping, rows: int = 64, k: int = 512, seed: int = 0) -> Codes:
    """Draw codes with scales of as many bits as these heads can hold, some of them zero or negative."""
    rng = np.random.default_rng(seed)
    low, high = RANGES[grouping.bits]
    low, high = (0, 16) if grouping.minima and grouping.bits == 4 else (low, high)
    codes = rng.integers(low, high, (rows, k)).astype(np.int8)
    if grouping.book in TABLES:
        codes = rng.choice(TABLES[grouping.book], (rows, k))
    if grouping.book is Codebook.E4M3:
        codes = np.where(codes & 127 == 127, 0, codes).astype(np.int8)
    shape = (rows, k // grouping.group)
    if grouping.heads is Heads.POWER:
        return Codes(codes, np.ldexp(np.float32(1), rng.integers(-30, 20, shape)), book=grouping.book)
    if grouping.heads is Heads.LEVELS:
        scales = random_levels(rng, rows, k, grouping, -128, 128)
        return Codes.of_levels(
            codes, scales, random_levels(rng, rows, k, grouping, 0, 64) if grouping.minima else None
        )
    scales = rng.normal(0, 1e-2, shape).astype(np.float32)
    scales = _held(scales, Heads.F16 if grouping.minima else grouping.heads)
    minima = _held(scales * rng.integers(0, 16, shape).astype(np.float32), grouping.heads)
    return Codes(codes, scales, minima if grouping.minima else None, book=grouping.book)


def random_levels(
    rng: np.random.Generator, rows: int, k: int, grouping: Grouping, low: int, high: int
) -> TwoLevelScales:
    units = rng.normal(0, 1e-3, (rows, k // 256)).astype(np.float16).astype(np.float32)
    return TwoLevelScales(units, rng.integers(low, high, (rows, k // grouping.group)).astype(np.int8))


def _held(numbers: NDArray[np.float32], heads: Heads) -> NDArray[np.float32]:
    if heads is Heads.BF16:
        return (bf16_bits(numbers).astype(np.uint32) << 16).view(np.float32)
    return numbers if heads is Heads.F32 else numbers.astype(np.float16).astype(np.float32)


def _assert_same(words: NDArray[np.uint16], rows: Codes) -> None:
    """Equal but for the signs of zeros."""
    expected = to_panels(bf16_bits(rows.values()))
    np.testing.assert_array_equal(
        np.where(words == 0x8000, 0, words), np.where(expected == 0x8000, 0, expected)
    )


@pytest.mark.parametrize("format_", FORMATS)
def test_panels_decode_to_the_rounded_numbers(format_: Format) -> None:
    grouping = GROUPINGS[format_]
    rows = random_codes(grouping)
    data = encode(rows, format_)
    assert len(data) == 2 * panel_bytes(format_, 512)
    assert len(data) * 8 / rows.codes.size == grouping.weight_bits
    _assert_same(decode(data, format_, 512), rows)


@pytest.mark.parametrize("format_", FORMATS)
def test_compiled_encoder_writes_the_same_bytes(format_: Format) -> None:
    library = coded_library()
    assert library is not None
    rows = random_codes(GROUPINGS[format_], rows=70)
    wanted = np.array([*range(69, 20, -1), -1, 3, -1, *range(12)])
    expected = encode(rows.taken(wanted), format_)
    out = np.full(len(expected) + 5, 0xA5, np.uint8)
    assert library.encode_groups(format_, rows, wanted, out) == len(expected)
    np.testing.assert_array_equal(out[: len(expected)], expected)
    assert (out[len(expected) :] == 0xA5).all()
    broken = replace(rows, scales=np.full_like(rows.scales, np.nan))
    with pytest.raises(ValueError, match="not finite"):
        library.encode_groups(format_, broken, wanted, out)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("other", FORMATS)
def test_what_is_held_together_keeps_its_numbers(format_: Format, other: Format) -> None:
    """Codes of one format in the smallest that holds those of two."""
    found = smallest_holding([format_, other], 512)
    if found is None:
        assert (GROUPINGS[format_].book is Codebook.E4M3) != (GROUPINGS[other].book is Codebook.E4M3)
        return
    rows = random_codes(GROUPINGS[format_], seed=1)
    data = encode(fitted(rows, GROUPINGS[found]), found)
    _assert_same(decode(data, found, 512), rows)


def test_the_smallest_form_has_heads_of_both() -> None:
    def of(*formats: Format, k: int = 512) -> Format | None:
        return smallest_holding(formats, k)

    assert of(Format.PANEL_INT4_LEVELS_MIN, Format.PANEL_INT6_16_LEVELS) is Format.PANEL_INT6_16_LEVELS_MIN
    assert of(Format.PANEL_INT4_F16, Format.PANEL_INT8_F16) is Format.PANEL_INT8_F16
    assert of(Format.PANEL_INT4_F16, Format.PANEL_INT6_16_LEVELS) is Format.PANEL_INT8_16
    assert of(Format.PANEL_INT4_F16, Format.PANEL_INT4_BF16) is Format.PANEL_INT4
    assert of(Format.PANEL_INT6_16_LEVELS, k=128) is Format.PANEL_INT8_16
    assert of(Format.PANEL_INT4_F16, k=24) is None


def test_numbers_that_heads_cannot_hold_are_refused() -> None:
    rows = random_codes(Grouping(4, 32, minima=False))
    with pytest.raises(ValueError, match="no f16 number"):
        encode(rows, Format.PANEL_INT4_F16)


def test_wider_groups_repeat_their_scales() -> None:
    rows = random_codes(Grouping(4, 32, minima=False), k=256)
    wide = Codes(rows.codes, rows.scales[:, :2])
    found = fitted(wide, Grouping(4, 32, minima=False))
    np.testing.assert_array_equal(found.values(), wide.values())
    assert found.scales.shape == (64, 8)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("columns", [range(256), range(256, 512), range(96), range(96, 512), range(144, 240)])
def test_a_cut_keeps_the_numbers(format_: Format, columns: range) -> None:
    """In the format of the whole where no group is cut, else in one of smaller groups, if there is any."""
    rows = random_codes(GROUPINGS[format_], seed=2)
    found = rows.cut(columns)
    np.testing.assert_array_equal(found.values(), rows.values()[:, columns.start : columns.stop])
    form = smallest_holding([format_], math.gcd(columns.start, len(columns)))
    span = GROUPINGS[format_].span
    if columns.start % span == 0 == columns.stop % span:
        assert form is format_
    if form is None:
        assert GROUPINGS[format_].book is Codebook.E4M3
        return
    _assert_same(decode(encode(fitted(found, GROUPINGS[form]), form), form, len(columns)), found)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e37])
def test_scales_that_are_no_numbers_are_refused(bad: float) -> None:
    rows = random_codes(Grouping(8, 32, minima=False))
    rows.scales[3, 1] = bad
    with pytest.raises(ValueError, match="not finite"):
        encode(rows, Format.PANEL_INT8)


def test_bytes_that_are_no_panels_are_refused() -> None:
    data = encode(random_codes(GROUPINGS[Format.PANEL_INT4], k=96), Format.PANEL_INT4)
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
    assert not both.levels
    taken = both.taken(np.array([9, -1, 0]))
    assert np.array_equal(taken.values()[0], second.values()[1])
    assert not taken.values()[1].any()
    assert len(taken.codes) == 3


def test_levels_are_taken_stacked_and_joined() -> None:
    grouping = GROUPINGS[Format.PANEL_INT4_LEVELS_MIN]
    first, second = (random_codes(grouping, rows=32, k=256, seed=s) for s in (1, 2))
    taken = stacked([first, second]).taken(np.arange(63, -1, -1))
    longer = taken.joined(32)
    assert [level.units.shape for level in longer.levels] == [(32, 2), (32, 2)]
    np.testing.assert_array_equal(longer.levels[1].products(), longer.minima)
    data = encode(longer, Format.PANEL_INT4_LEVELS_MIN)
    _assert_same(decode(data, Format.PANEL_INT4_LEVELS_MIN, 512), longer)
