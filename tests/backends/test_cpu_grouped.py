"""Kernels of grouped formats: the words of the dequantised panel, and the sums that plain panels give, on
each instruction set."""

from __future__ import annotations

import ctypes as ct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from firelane import env
from firelane.backends.cpu.codegen.compile import SOURCES, KernelCompiler
from firelane.backends.cpu.codegen.contract_source import contract_source
from firelane.backends.cpu.codegen.matrices import DECODERS
from firelane.backends.cpu.native import CodedStruct
from firelane.native.machine import compile_flags, cpu_identity, supported_isas
from firelane.weights.formats.formats import GROUPINGS, Format
from firelane.weights.formats.grouped import decode, encode, panel_bytes
from tests.backends.cpu_harness import aligned
from tests.weights.test_grouped import random_codes

K = 512
ROWS = [1, 2, 3, 5, 8, 12, 13, 25, 40]
"""One row, tiles, several tiles."""
MULTIPLIED = {
    Format.PANEL_INT4_LEVELS_MIN: "128, 128",
    Format.PANEL_INT6_F16: "40, 24, 32, 32, 8, 56, 0, 64",
    Format.PANEL_INT4_16: "256",
    Format.PANEL_E2M1_16: "100, 156",
}
"""Words that are summed apart: whole blocks of codes, or such that end within one."""
SOURCE = """\
#include "panels/grouped.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace firelane;

template <class Panels>
void multiply(const Panels& panels, int rows, const Bf16::act* x, void* scratch, float* out) {{
  panels.template multiply<{k}>(0, 2, rows, x, scratch, [&](int row, int p, f32x16 a, f32x16 b) FL_LAMBDA {{
    store(out + row * 64 + p * 32, a);
    store(out + row * 64 + p * 32 + 16, b);
  }});
}}

EXPORT void round_rows(int count, const float* x, Bf16::act* out) {{
  for (int i = 0; i < count; i += 16) Bf16::store_act(out + i, load(x + i));
}}

{exports}
"""
EXPORT = """
EXPORT void decode_{name}(const std::uint8_t* panel, std::uint32_t* out) {{
  decode_panel<{decoder}, {k}>(panel, out);
}}
"""
EXPORT_PLAIN = """
EXPORT void plain_{name}(int rows, const std::uint32_t* words, const Bf16::act* x, void* scratch,
                             float* out) {{
  multiply(PlainPanels<Bf16, {k}, Segments<{segments}>>{{words}}, rows, x, scratch, out);
}}
"""
EXPORT_PRODUCT = """
EXPORT void multiply_{name}(int rows, const CodedWeight* weight, const Bf16::act* x, void* scratch,
                            float* out) {{
  multiply(CodedPanels<{decoder}, {k}, Segments<{segments}>>{{*weight}}, rows, x, scratch, out);
}}
"""


def source() -> str:
    exports = [EXPORT.format(name=f.value, decoder=DECODERS[f], k=K) for f in GROUPINGS]
    for f, segments in MULTIPLIED.items():
        export = EXPORT_PLAIN + EXPORT_PRODUCT
        exports.append(export.format(name=f.value, decoder=DECODERS[f], segments=segments, k=K))
    return contract_source() + SOURCE.format(k=K, exports="".join(exports))


@pytest.fixture(scope="module", params=supported_isas(cpu_identity()))
def library(request: pytest.FixtureRequest, kernel_cache: Path) -> ct.CDLL:
    compiler = KernelCompiler.find(env.read(), kernel_cache)
    path = compiler.toolchain.build(
        source(),
        include_dirs=[SOURCES],
        flags=(*compile_flags(request.param, cpu_identity()), "-O1"),
        cache_dir=kernel_cache,
        cpu_key=cpu_identity().key,
        name=f"grouped formats on {request.param}",
        parts=1,
    )
    return ct.CDLL(str(path))


def address(array: NDArray[np.generic]) -> ct.c_void_p:
    return ct.c_void_p(array.ctypes.data)


def unsigned_zeros(words: NDArray[np.uint16]) -> NDArray[np.uint16]:
    return np.where(words == 0x8000, 0, words).astype(np.uint16)


@pytest.mark.parametrize("format_", GROUPINGS, ids=lambda f: f.value)
def test_words_of_the_dequantised_panel(library: ct.CDLL, format_: Format) -> None:
    for seed in range(3):
        data = encode(random_codes(GROUPINGS[format_], rows=32, k=K, seed=seed), format_)
        out = np.full((K // 2, 32, 2), 0xFFFF, np.uint16)
        getattr(library, f"decode_{format_.value}")(address(data), address(out))
        np.testing.assert_array_equal(unsigned_zeros(out), unsigned_zeros(decode(data, format_, K)[0]))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("format_", MULTIPLIED, ids=lambda f: f.value)
@pytest.mark.parametrize("decode_once_from", [2, 99])
def test_sums_of_plain_panels(library: ct.CDLL, format_: Format, rows: int, decode_once_from: int) -> None:
    data = encode(random_codes(GROUPINGS[format_], rows=64, k=K), format_)
    words = decode(data, format_, K)
    x = np.random.default_rng(rows).standard_normal((rows, K), np.float32)
    acts = np.zeros((rows, K), np.float32)  # room for either kind
    library.round_rows(rows * K, address(x), address(acts))
    scratch = aligned(np.zeros(K * 128, np.uint8))
    offsets = np.arange(3, dtype=np.uint64) * np.uint64(panel_bytes(format_, K))
    weight = CodedStruct(
        bytes=data.ctypes.data, offsets=offsets.ctypes.data, decode_once_from=decode_once_from
    )
    found, expected = np.zeros((rows, 64), np.float32), np.ones((rows, 64), np.float32)
    multiply = getattr(library, f"multiply_{format_.value}")
    multiply(rows, ct.byref(weight), address(acts), address(scratch), address(found))
    plain = getattr(library, f"plain_{format_.value}")
    plain(rows, address(words), address(acts), address(scratch), address(expected))
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(found, expected)
