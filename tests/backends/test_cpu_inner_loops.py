"""The compiled inner loops of the matrix products keep their sums in registers: a loop that passes them
through the stack gives the right results, many times slower."""

from __future__ import annotations

import re
import subprocess

import pytest

from firelane import env
from firelane.backends.cpu.codegen.compile import SOURCES
from firelane.backends.cpu.codegen.contract_source import contract_source
from firelane.native.machine import compile_flags, cpu_identity
from firelane.native.toolchain import BASE_FLAGS, Toolchain, find_compiler, zig_flags

SOURCE = """
#include "panels/coded.h"
namespace firelane {
template void tile_rows<Bf16, kTileRows, Segments<512>, 528>(const Bf16::act*, const Bf16::word*, Ahead,
                                                             Sums&);
template void tile_rows<Bf16, 1, Segments<512>, 528>(const Bf16::act*, const Bf16::word*, Ahead, Sums&);
template void tile_rows<F32, kTileRows, Segments<512>, 528>(const float*, const float*, Ahead, Sums&);
}  // namespace firelane
"""
# Products of one instruction: bf16 pairs, or fused.
PRODUCT = re.compile(r"v(?:fmadd\d+|dpbf16)ps\b")
STORE_TO_STACK = re.compile(r"v\w+\s+%[yz]mm\d+,\s*-?\d*\(%[re][sb]p\)")


def assembly(compiler: Toolchain, isa: str) -> str:
    flags = [*BASE_FLAGS, *compile_flags(isa, cpu_identity(), least=True)]
    flags = zig_flags(flags) if compiler.is_zig else flags
    command = [*compiler.command, *flags, f"-I{SOURCES}", "-x", "c++", "-S", "-o", "-", "-"]
    source = contract_source() + SOURCE
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def inner_loops(text: str) -> list[list[str]]:
    """The bodies of loops that hold no other loop: from a label to the jump back to it."""
    lines = [line.strip() for line in text.splitlines()]
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.startswith(".L") and line.endswith(":")}
    jumps = [(i, line.split()[-1]) for i, line in enumerate(lines) if re.match(r"j\w+\s+\.L", line)]
    loops = [(labels[to], i) for i, to in jumps if labels.get(to, i) < i]
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return [lines[start:end] for start, end in inner]


@pytest.mark.parametrize("isa", ["avx512bf16", "avx512", "avx2"])
def test_no_vector_passes_through_the_stack(isa: str) -> None:
    if cpu_identity().architecture != "x86_64":
        pytest.skip("compiles for x86-64")
    loops = [
        loop
        for loop in inner_loops(assembly(find_compiler(env.read()), isa))
        if sum(bool(PRODUCT.match(line)) for line in loop) >= 4
    ]
    assert len(loops) >= 3
    for loop in loops:
        spilled = [line for line in loop if STORE_TO_STACK.match(line)]
        assert not spilled, f"{isa}: {spilled[:3]} in a loop of {len(loop)} lines"


def test_a_spilling_loop_is_seen() -> None:
    text = "\n.L1:\nvfmadd231ps %ymm0, %ymm1, %ymm2\nvmovaps %ymm2, 8(%rsp)\njne .L1\n"
    (loop,) = inner_loops(text)
    assert STORE_TO_STACK.match(loop[-1])
