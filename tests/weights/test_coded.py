"""The coded formats in NumPy: exact, of the documented size, and strict about what is decoded."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from firelane.weights.formats.coded import (
    LANES,
    best_base,
    code_table,
    decode,
    decode_panel,
    encode,
    encode_panel,
    fits,
    panel_bounds,
    panel_bytes,
)
from firelane.weights.formats.formats import Format
from tests.weights.files import to_bf16

W4, W3 = Format.PANEL_CODED4, Format.PANEL_CODED3
BOTH = pytest.mark.parametrize("format_", [W4, W3], ids=lambda f: f.value)


def normal(k: int, seed: int = 0) -> NDArray[np.uint16]:
    return to_bf16(np.random.default_rng(seed).standard_normal((k // 2, 32, 2)) * 0.02)


def finite(bits: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """The same with an exponent of 254 for 255."""
    return np.where((bits & 0x7F80) == 0x7F80, bits & 0xFF7F, bits).astype(np.uint16)


def any_bits(k: int, seed: int = 0) -> NDArray[np.uint16]:
    return finite(np.random.default_rng(seed).integers(0, 2**16, (k // 2, 32, 2), np.uint16))


def panels(k: int) -> dict[str, NDArray[np.uint16]]:
    shape = (k // 2, 32, 2)
    mixed = normal(k, 1)
    mixed[0] = any_bits(2, 2)
    mixed[-1, 5:] = 0
    return {
        "normal": normal(k),
        "any": any_bits(k),
        "zeros": np.zeros(shape, np.uint16),
        "minus zeros": np.full(shape, 0x8000, np.uint16),
        "subnormals": np.full(shape, 0x807F, np.uint16),
        "largest": np.full(shape, 0xFF7F, np.uint16),
        "one exponent": np.full(shape, 0x3F80, np.uint16) | (any_bits(k) & 0x807F),
        "mixed": mixed,
    }


@BOTH
@pytest.mark.parametrize("k", [16, 48, 256])
def test_round_trip(format_: Format, k: int) -> None:
    for name, panel in panels(k).items():
        coded = encode_panel(panel, format_)
        least, most = panel_bounds(format_, k)
        assert least <= len(coded) <= most, name
        assert len(coded) % 64 == 0
        np.testing.assert_array_equal(decode_panel(coded, format_, k), panel, err_msg=name)


@BOTH
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_round_trip_of_anything(format_: Format, data: st.DataObject) -> None:
    k = 16 * data.draw(st.integers(1, 3))
    few = st.sampled_from(data.draw(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=6)))
    elements = data.draw(st.sampled_from([few, st.integers(0, 0xFFFF)]))
    panel = finite(data.draw(hnp.arrays(np.uint16, (k // 2, 32, 2), elements=elements)))
    np.testing.assert_array_equal(decode_panel(encode_panel(panel, format_), format_, k), panel)


def lane(panel: NDArray[np.uint16], step: int, i: int) -> int:
    """The word that byte i of a step belongs to, by the definition."""
    at = (i % 16 >= 8) * 32 + 8 * (i // 16) + i % 8
    return int(panel[step, at // 2, at % 2])


def test_coded4_byte_by_byte() -> None:
    """Read as the format's description says, with none of the module's code."""
    k, panel = 16, panels(16)["mixed"]
    coded = encode_panel(panel, W4).tolist()
    base, pairs = coded[0], 128
    escapes = listed = pairs + k // 4 * 192
    for step in range(k // 2):
        pair, shared = pairs + step // 2 * 192, coded[64 + step // 2]
        for i in range(64):
            code = coded[pair + i] >> (4 * (step % 2)) & 15
            high = 0 if code == 15 else base + code % 8 + 0x80 * (code > 7)
            assert coded[code] == (0x7F if code == 7 else high)
            if code == 7:
                high = coded[escapes] if shared == 0x7F else shared
                escapes += shared == 0x7F
            assert high << 8 | coded[pair + 64 + 64 * (step % 2) + i] == lane(panel, step, i)
    assert escapes > listed
    assert not any(coded[64 + k // 4 : pairs])
    assert len(coded) == -(-escapes // 64) * 64


def test_coded4_lists_only_escapes_that_differ() -> None:
    panel = np.full((8, 32, 2), 0x3F80, np.uint16)
    for pair, words in enumerate(([], [0x0100], [0x0100, 0x01FF], [0x0100, 0x8100])):
        panel[2 * pair, : len(words), 0] = words
    coded = encode_panel(panel, W4)
    assert coded[64:68].tolist() == [0, 0x01, 0x01, 0x7F]
    assert coded[128 + 4 * 192 :][:3].tolist() == [0x01, 0x81, 0]
    np.testing.assert_array_equal(decode_panel(coded, W4, 16), panel)


def test_coded3_byte_by_byte() -> None:
    k, panel = 48, panels(48)["mixed"]
    coded = encode_panel(panel, W3).tolist()
    at = 64
    for block in range(k // 16):
        escapes = at + 704
        for step in range(8):
            for i in range(64):
                group = int.from_bytes(bytes(coded[at + 24 * step + 3 * (i // 8) :][:3]), "little")
                code = group >> (3 * (i % 8)) & 7
                assert coded[code] == (0xFF if code == 7 else coded[0] + code)
                exponent = coded[0] + code
                if code == 7:
                    exponent = coded[escapes]
                    escapes += 1
                rest = coded[at + 192 + 64 * step + i]
                word = (rest & 1) << 15 | exponent << 7 | rest >> 1
                assert word == lane(panel, 8 * block + step, i)
        at = escapes
    assert len(coded) == -(-at // 64) * 64


def test_lanes_restore_the_order_when_bytes_are_interleaved() -> None:
    """AVX-512's unpack instructions interleave bytes in this way, in each 16 bytes on their own."""
    low_half = [int(i) for lane in LANES.reshape(4, 16) for i in lane[:8]]
    high_half = [int(i) for lane in LANES.reshape(4, 16) for i in lane[8:]]
    assert low_half + high_half == list(range(64))


def escapes_of(panel: NDArray[np.uint16], format_: Format, base: int) -> int:
    """Count the weights of a panel that are escapes."""
    if format_ is W3:
        code = (panel.astype(int) >> 7 & 0xFF) - base
        return int(((code < 0) | (code > 6)).sum())
    high = panel.astype(int) >> 8
    code = (high & 0x7F) - base
    return int((((code < 0) | (code > 6)) & (high != 0)).sum())


@BOTH
def test_base_leaves_the_fewest_escapes(format_: Format) -> None:
    """The lowest such base, over all that are allowed."""
    for name, panel in panels(16).items():
        allowed = range(1, 0x7F - 6) if format_ is W4 else range(255 - 6)
        best = min(allowed, key=lambda base: (escapes_of(panel, format_, base), base))
        coded = encode_panel(panel, format_)
        assert coded[0] == best, name
        most = panel_bytes(format_, 16, escapes_of(panel, format_, best))
        assert len(coded) == most if format_ is W3 else len(coded) <= most, name


def test_sizes() -> None:
    """12 bits and 11.2 bits of weights that are normally distributed."""
    panel = normal(4096)
    assert 12.0 < 8 * len(encode_panel(panel, W4)) / panel.size < 12.1
    assert 11.0 < 8 * len(encode_panel(panel, W3)) / panel.size < 11.3
    assert panel_bounds(W4, 64) == (128 + 16 * 192, 128 + 16 * 192 + 2048)
    assert panel_bounds(W3, 64) == (64 + 4 * 704 + 0, 64 + 4 * 704 + 2048)


@BOTH
def test_matrix(format_: Format) -> None:
    matrix = np.stack(list(panels(32).values()))
    data, table = encode(matrix, format_)
    assert table.dtype == np.uint64
    assert (table[0], table[-1], len(table)) == (0, len(data), len(matrix) + 1)
    np.testing.assert_array_equal(decode(data, table, format_, 32), matrix)
    data, table = encode(matrix[:0], format_)
    assert decode(data, table, format_, 32).shape == (0, 16, 32, 2)
    with pytest.raises(ValueError, match="table of 8 panels"):
        decode(data, encode(matrix, format_)[1], format_, 32)


def test_k_that_does_not_fit() -> None:
    assert [k for k in range(1, 33) if fits(W4, k)] == [4, 8, 12, 16, 20, 24, 28, 32]
    assert [k for k in range(1, 33) if fits(W3, k)] == [16, 32]
    assert not fits(Format.PANEL_BF16, 16)
    with pytest.raises(ValueError, match="multiple of 16 inputs, not 24"):
        encode_panel(normal(24), W3)


@BOTH
@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC1, 0xFFFF])
def test_not_finite(format_: Format, bits: int) -> None:
    panel = normal(16)
    panel[3, 7, 1] = bits
    with pytest.raises(ValueError, match="not finite"):
        encode_panel(panel, format_)


@BOTH
def test_damaged_panels(format_: Format) -> None:
    k = 32
    good = encode_panel(panels(k)["mixed"], format_)
    bad: dict[str, Any] = {
        "bytes are no": good[:64],
        "end": good[:-64],
        "contents end": np.append(good, np.zeros(64, np.uint8)),
        "table": np.where(np.arange(len(good)) == 9, 1, good).astype(np.uint8),
    }
    for message, data in bad.items():
        with pytest.raises(ValueError, match=message):
            decode_panel(data, format_, k)
    with pytest.raises(ValueError, match=r"no .* panel"):
        decode_panel(good, format_, k + 2)


@BOTH
def test_each_flipped_bit_is_told_or_changes_a_weight(format_: Format) -> None:
    panel = panels(16)["mixed"]
    good = encode_panel(panel, format_)
    for at, bit in itertools.product(range(len(good)), range(8)):
        data = good.copy()
        data[at] ^= np.uint8(1 << bit)
        with contextlib.suppress(ValueError):
            assert not np.array_equal(decode_panel(data, format_, 16), panel), f"byte {at}, bit {bit}"


def test_tables() -> None:
    assert code_table(W3, 100)[:9].tolist() == [100, 101, 102, 103, 104, 105, 106, 255, 100]
    four = [60, 61, 62, 63, 64, 65, 66, 127, 188, 189, 190, 191, 192, 193, 194, 0]
    assert code_table(W4, 60).tolist() == four * 4
    assert best_base(np.zeros(256, np.int64), W3) == 0
    assert best_base(np.zeros(128, np.int64), W4) == 1
