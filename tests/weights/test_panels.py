"""Encoding runs of panels: compiled code gives the bytes that the NumPy reference gives, on every target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from firelane import env
from firelane.native.machine import cpu_identity, supported_isas
from firelane.weights.formats.coded import panel_bounds
from firelane.weights.formats.coded_native import CodedLibrary, build, coded_library
from firelane.weights.formats.formats import PANEL_ROWS, Format, pack, packed_rows, source_rows
from firelane.weights.packing.panels import Run, encode_run, is_finite
from tests.weights.files import to_bf16

FORMATS = (Format.PANEL_BF16, Format.PANEL_CODED4, Format.PANEL_CODED3)
BY_FORMAT = pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f.value)
KINDS = ("normal", "any", "zeros", "mixed")


@pytest.fixture(scope="module", params=supported_isas(cpu_identity()))
def library(request: pytest.FixtureRequest, kernel_cache: Path) -> CodedLibrary:
    return build(kernel_cache, env.read({"HOME": "/"}), request.param)


def weights(kind: str, rows: int, k: int, seed: int = 0) -> NDArray[np.uint16]:
    rng = np.random.default_rng(seed)
    if kind == "zeros":
        return np.zeros((rows, k), np.uint16)
    if kind == "any":
        bits = rng.integers(0, 2**16, (rows, k), np.uint16)
        return np.where((bits & 0x7F80) == 0x7F80, bits & 0xFF7F, bits).astype(np.uint16)
    bits = to_bf16(rng.standard_normal((rows, k)) * 0.02)
    if kind == "mixed":
        other = rng.random((rows, k)) < 0.05
        bits[other] = weights("any", rows, k, seed + 1)[other]
    return bits


def whole(parts: list[NDArray[np.uint16]], *, gated: bool = False) -> Run:
    rows = sum(len(part) for part in parts)
    source = source_rows(rows, 0, packed_rows(rows, gated=gated), gated=gated)
    starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
    part = np.searchsorted(starts, source, side="right") - 1
    return Run(spans=tuple(parts), part=part, row=source - starts[part])


def encoded(run: Run, format_: Format, library: CodedLibrary | None) -> tuple[bytes, list[int]]:
    panels = len(run.part) // PANEL_ROWS
    most = panel_bounds(format_, run.k)[1] if format_.is_coded else PANEL_ROWS * 2 * (run.k + run.k % 2)
    out = np.full(panels * most + 64, 0xAA, np.uint8)
    ends = encode_run(run, format_, out[: panels * most], library)
    assert (out[panels * most :] == 0xAA).all()
    return out[: int(ends[-1])].tobytes(), ends.tolist()


def fitting(format_: Format) -> list[int]:
    """Each remainder that the last strip of inputs can have."""
    return [k for k in (*range(1, 68), 128, 208) if k % format_.k_multiple == 0]


@BY_FORMAT
def test_compiled_as_the_reference(library: CodedLibrary, format_: Format) -> None:
    for k in fitting(format_):
        for kind in KINDS:
            run = whole([weights(kind, 33, k), weights(kind, 20, k, 7)])
            assert encoded(run, format_, library) == encoded(run, format_, None), (k, kind)


@BY_FORMAT
@pytest.mark.parametrize("width", [16, 40, 136])
def test_gated(library: CodedLibrary, format_: Format, width: int) -> None:
    run = whole([weights("mixed", width, 80), weights("mixed", width, 80, 7)], gated=True)
    assert encoded(run, format_, library) == encoded(run, format_, None)


@pytest.mark.parametrize("gated", [False, True])
def test_plain_panels_are_what_pack_makes(gated: bool) -> None:
    for k in (16, 5):
        parts = [weights("any", 40, k), weights("any", 40, k, 7)]
        run = whole(parts, gated=gated)
        want = pack(np.concatenate(parts), Format.PANEL_BF16, gated=gated).tobytes()
        assert encoded(run, Format.PANEL_BF16, coded_library())[0] == want
        assert encoded(run, Format.PANEL_BF16, None)[0] == want


def test_float32() -> None:
    run = Run(
        spans=(np.arange(40 * 5, dtype=np.float32).reshape(40, 5),),
        part=np.zeros(32, int),
        row=np.arange(8, 40),
    )
    out = np.zeros(32 * 6 * 4, np.uint8)
    assert encode_run(run, Format.PANEL_F32, out, coded_library()).tolist() == [out.nbytes]
    want = pack(run.spans[0][8:], Format.PANEL_F32)
    np.testing.assert_array_equal(out.view(np.float32), want.ravel())


@BY_FORMAT
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_compiled_as_the_reference_on_anything(format_: Format, data: st.DataObject) -> None:
    """Few values, so that ranges have ties and edges; rows in any order, zeros among them."""
    k = 16 * data.draw(st.integers(1, 4))
    seed = data.draw(st.integers(0, 2**32 - 1))
    values = data.draw(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=12))
    rng = np.random.default_rng(seed)
    bits = np.array(values, np.uint16)[rng.integers(0, len(values), (20, k))]
    bits = np.where((bits & 0x7F80) == 0x7F80, bits & 0x807F, bits).astype(np.uint16)
    part = rng.integers(-1, 2, 64)
    run = Run(spans=(bits[:10], bits[10:]), part=part, row=rng.integers(0, 10, 64))
    assert encoded(run, format_, coded_library()) == encoded(run, format_, None)


@BY_FORMAT
@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC1, 0xFFFF])
def test_not_finite(library: CodedLibrary, format_: Format, bits: int) -> None:
    for at in [(0, 0), (63, 47)]:
        rows = weights("normal", 64, 48)
        rows[at] = bits
        for which in (library, None):
            with pytest.raises(ValueError, match="not finite"):
                encoded(whole([rows]), format_, which)


def test_is_finite() -> None:
    assert is_finite(np.array([0x7F7F, 0xFF7F], np.uint16))
    assert not is_finite(np.array([0x7F80], np.uint16))
    assert not is_finite(np.array([0xFFFF], np.uint16))
    assert is_finite(np.ones(3, np.float32))
    assert not is_finite(np.array([np.inf], np.float32))
    assert is_finite(np.empty(0, np.uint16))


def test_count(library: CodedLibrary) -> None:
    words = np.random.default_rng(0).integers(0, 2**16, 4099, np.uint16)
    counts = np.ones(512, np.int64)
    library.count(words, counts)
    np.testing.assert_array_equal(counts, 1 + np.bincount(words >> 7, minlength=512))
