"""Kernels of integer products: the bits of the reference, on each instruction set."""

from __future__ import annotations

import ctypes as ct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from firelane import env
from firelane.backends.cpu.codegen.compile import SOURCES, KernelCompiler
from firelane.backends.cpu.codegen.contract_source import contract_source
from firelane.backends.cpu.codegen.integer_calls import integer_codes
from firelane.backends.cpu.native import CodedStruct
from firelane.native.machine import compile_flags, cpu_identity, supported_isas
from firelane.program.integer_products import IntegerMatrix, integer_product, row_group
from firelane.weights.formats.formats import GROUPINGS, Format
from firelane.weights.formats.grouped import encode, panel_bytes
from tests.backends.cpu_harness import aligned, round_bf16, widen_bf16
from tests.weights.test_grouped import random_codes

K = 512
ROWS = [1, 2, 3, 5, 8, 13]
"""A few rows, a tile, several tiles."""
EVEN = (64, 96, 32, 64, 64, 64, 0, 128)
ODD = (48, 80, 64, 64, 16, 112, 0, 128)


@dataclass(frozen=True)
class Case:
    format: Format
    segments: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.format.value}_{len(self.segments)}_{self.segments[0]}"


CASES = [
    Case(Format.PANEL_INT4_LEVELS_MIN, EVEN),
    Case(Format.PANEL_INT4_16_LEVELS_MIN, ODD),
    Case(Format.PANEL_INT4_F16, ODD),
    Case(Format.PANEL_INT6_LEVELS_MIN, ODD),
    Case(Format.PANEL_INT6_16_LEVELS, EVEN),
    Case(Format.PANEL_INT8_F16, EVEN),
    Case(Format.PANEL_INT8_16_MIN, ODD),
    Case(Format.PANEL_MXFP4, EVEN),
    Case(Format.PANEL_IQ4_LEVELS, EVEN),
]
SOURCE = """\
#include "panels/int8.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace firelane;

template <class Panels>
void multiply(int rows, const CodedWeight& weight, const float* x, void* scratch, float* out) {{
  alignas(64) static Bf16::act acts[64 * {k}];
  alignas(64) static std::uint8_t units[64 * {k} * 2];
  for (int i = 0; i < rows * {k}; i += 16) Bf16::store_act(acts + i, load(x + i));
  Context c{{}};
  c.limits.threads = 1;
  Panels::template round_rows<1, {k}, 2 * {k}>(c, 0, rows, acts, units);
  Panels panels{{weight}};
  const auto keep = [&](int row, int p, f32x16 a, f32x16 b) FL_LAMBDA {{
    store(out + row * 64 + p * 32, a);
    store(out + row * 64 + p * 32 + 16, b);
  }};
  panels.template multiply<2 * {k}>(0, 2, rows, units, scratch, keep);
}}

{exports}
"""
EXPORT = """
EXPORT void {name}(int rows, const CodedWeight* weight, const float* x, void* scratch, float* out) {{
  multiply<Int8Panels<{codes}, {k}, {group}, Segments<{units}>>>(rows, *weight, x, scratch, out);
}}
"""


def export(case: Case) -> str:
    grouping, group = GROUPINGS[case.format], row_group(K, case.segments)
    unit = min(grouping.group, group)
    units = ", ".join(str(width // unit) for width in case.segments)
    codes = integer_codes(grouping)
    return EXPORT.format(name=case.name, codes=codes, k=K, group=group, units=units)


@pytest.fixture(scope="module", params=supported_isas(cpu_identity()))
def library(request: pytest.FixtureRequest, kernel_cache: Path) -> ct.CDLL:
    compiler = KernelCompiler.find(env.read(), kernel_cache)
    path = compiler.toolchain.build(
        contract_source() + SOURCE.format(k=K, exports="".join(map(export, CASES))),
        include_dirs=[SOURCES],
        flags=(*compile_flags(request.param, cpu_identity()), "-O1"),
        cache_dir=kernel_cache,
        cpu_key=cpu_identity().key,
        name=f"integer products on {request.param}",
        parts=1,
    )
    return ct.CDLL(str(path))


def address(array: NDArray[np.generic]) -> ct.c_void_p:
    return ct.c_void_p(array.ctypes.data)


def random_rows(rows: int) -> NDArray[np.float32]:
    """Numbers of bf16, among them groups of zeros and of numbers too small for a scale."""
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, K), np.float32) * np.exp2(
        rng.integers(-9, 9, (rows, K // 32)).repeat(32, 1)
    )
    x[0, 32:64], x[-1, 64:96] = 0, x[-1, 64:96] * 2.0**-118
    return widen_bf16(round_bf16(x.astype(np.float32)))


def product(
    library: ct.CDLL, case: Case, data: NDArray[np.uint8], x: NDArray[np.float32]
) -> NDArray[np.float32]:
    scratch, out = aligned(np.zeros(K * 64, np.uint8)), np.ones((len(x), 64), np.float32)
    x = aligned(x)
    offsets = np.arange(3, dtype=np.uint64) * np.uint64(panel_bytes(case.format, K))
    weight = CodedStruct(bytes=data.ctypes.data, offsets=offsets.ctypes.data, decode_once_from=2)
    getattr(library, case.name)(len(x), ct.byref(weight), address(x), address(scratch), address(out))
    return out


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bits_of_the_reference(library: ct.CDLL, case: Case) -> None:
    codes = random_codes(GROUPINGS[case.format], rows=64, k=K)
    matrix, data = IntegerMatrix(codes.codes, codes.scales, codes.minima), encode(codes, case.format)
    for rows in ROWS:
        x = random_rows(rows)
        expected = integer_product(x, matrix, case.segments)
        assert np.isfinite(expected).all()
        np.testing.assert_array_equal(product(library, case, data, x), expected)
