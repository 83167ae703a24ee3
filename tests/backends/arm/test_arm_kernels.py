"""The NEON kernels under emulation: each op against its reference, the same bits in every batch and of
lossless forms, and what stands in the inner loops. Run with -m arm (scripts/arm_check)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from firelane.backends.cpu.codegen.codegen import generate
from firelane.backends.cpu.codegen.layout import Layout
from firelane.contract import AdapterLimits
from firelane.program.adapters import with_adapters
from firelane.program.program import Program
from firelane.program.reference import ReferenceExecutor
from tests.backends.arm.emulation import (
    OBJDUMP,
    compiled,
    compiled_for_macos,
    emulated,
    has_zig,
    inner_loops,
    missing,
    with_forms,
)
from tests.backends.cpu_harness import Chunk, Machine, fitted, limits
from tests.backends.test_cpu_coded import FORMS, run
from tests.backends.test_cpu_coded import SPECS as CODED_SPECS
from tests.backends.test_cpu_ops import SPECS, apart, check_step
from tests.models.dense import DenseSpec, dense_program

pytestmark = [pytest.mark.arm, pytest.mark.skipif(bool(missing()), reason=missing())]

# Emulation takes milliseconds for a token: fewer of them than on this machine's own targets.
STEPS = {
    "one-token": [[Chunk(0, 0, 1)]],
    "mixed": [[Chunk(0, 0, 13), Chunk(2, 0, 40)], [Chunk(2, 40, 1), Chunk(0, 13, 30), Chunk(3, 0, 5)]],
    "score": [[Chunk(0, 0, 9, score=True)]],
}
CASES = [("neonbf16", "bf16"), ("neon", "bf16"), ("neon", "f32")]
CASES += [("neonbf16", "bf16-experts"), ("neon", "f32-experts")]
CASES += [("neonbf16", "bf16-recurrent"), ("neon", "f32-recurrent")]
CASES += [("neonbf16", "bf16-latent"), ("neon", "f32-latent")]
CASES += [("neonbf16", "bf16-int8"), ("neon", "bf16-int8"), ("neonbf16", "bf16-latent-fp8")]


def layout_of(spec: DenseSpec | Program, isa: str) -> Layout:
    program = spec if isinstance(spec, Program) else dense_program(spec)
    return Layout(program=program, limits=fitted(limits(), program), isa=isa)


@pytest.fixture(scope="module", params=CASES, ids="/".join)
def driven(request: pytest.FixtureRequest, kernel_cache: Path) -> Iterator[Machine]:
    isa, spec = request.param
    layout = layout_of(SPECS[spec], isa)
    vars(layout)["placement"] = apart(layout)
    m = emulated(layout, kernel_cache)
    yield m
    m.executor.release()


@pytest.mark.parametrize("name", STEPS)
def test_ops_agree_with_their_references(driven: Machine, name: str) -> None:
    sizes, program = driven.executor.limits, driven.executor.layout.program
    slots, length = sizes.max_num_seqs, sizes.max_model_len
    reference = ReferenceExecutor(program, driven.weights.values, slots=slots, max_len=length)
    rng = np.random.default_rng(3)
    for slot in range(4):
        driven.greedy(slot, rng.integers(0, program.vocab_size, 200).tolist())
        driven.give_blocks(slot, rng.permutation(100)[: sizes.blocks_per_seq] + 100 * slot)
    for chunks in STEPS[name]:
        check_step(driven, reference, chunks)


def generated(m: Machine, steps: list[list[Chunk]], slot: int) -> list[bytes]:
    """Return the bytes that the slot's rows gave in each step that samples it."""
    m.executor.pages[:] = 0xFF
    for other in range(4):
        m.greedy(other, np.random.default_rng(other % 2).integers(0, 331, 100).tolist())
        m.give_blocks(other, range(20 * other, 20 * other + 20))
    found = list[bytes]()
    for chunks in steps:
        outputs = m.step(chunks)
        sampled = [c.slot for c in chunks if c.sample]
        if slot in sampled:
            row = sampled.index(slot)
            found.append(outputs.tokens[row].tobytes() + outputs.top_logprobs[row, :5].tobytes())
    return found


def test_batches_and_chunks_give_the_same_bits(driven: Machine) -> None:
    """Slots 1 and 3 have the same prompt."""
    alone = [[Chunk(1, 0, 50)], [Chunk(1, 50, 1)], [Chunk(1, 51, 1)]]
    together = [
        [Chunk(0, 0, 20, sample=False), Chunk(3, 0, 17, sample=False)],
        [Chunk(3, 17, 33), Chunk(2, 0, 9), Chunk(0, 20, 7, sample=False)],
        [Chunk(0, 27, 1), Chunk(2, 9, 5), Chunk(3, 50, 1)],
        [Chunk(3, 51, 1), Chunk(0, 28, 1), Chunk(2, 14, 1)],
    ]
    expected = generated(driven, alone, 1)
    assert len(expected) == 3
    assert generated(driven, together, 3) == expected


def test_lossless_forms_give_the_bits_of_plain_weights(kernel_cache: Path) -> None:
    layout = layout_of(CODED_SPECS["tied"], "neon")
    results = list[list[bytes]]()
    for form in (None, *FORMS):
        m = emulated(with_forms(layout, form), kernel_cache)
        results.append(run(m))
        m.executor.release()
    assert results[1] == results[0]
    assert results[2] == results[0]


@pytest.mark.skipif(
    not OBJDUMP, reason="no aarch64-linux-gnu-objdump: apt-get install binutils-aarch64-linux-gnu"
)
@pytest.mark.parametrize(("isa", "operation"), [("neonbf16", "bfdot"), ("neon", "fmla")])
def test_inner_loops_multiply_and_do_not_spill(kernel_cache: Path, isa: str, operation: str) -> None:
    program = compiled(layout_of(SPECS["bf16"], isa), kernel_cache)
    loops = inner_loops(program, "firelane::tile_")
    products = [loop for loop in loops if sum(line.startswith(operation) for line in loop) >= 8]
    assert len(products) >= 5
    assert not [line for loop in products for line in loop if "[sp" in line]


@pytest.mark.parametrize(("isa", "spec"), [("neonbf16", "bf16"), ("neon", "f32")])
def test_kernels_of_adapters_compile(kernel_cache: Path, isa: str, spec: str) -> None:
    asked = AdapterLimits(max_adapters=2, max_rank=20)
    program = with_adapters(dense_program(SPECS[spec]), asked)
    layout = replace(layout_of(program, isa), adapter_limits=asked)
    assert "lora_expand" in generate(layout)
    assert compiled(layout, kernel_cache).exists()


@pytest.mark.skipif(not has_zig(), reason="no zig: pip install 'firelane[compiler]'")
def test_kernels_compile_for_macos(kernel_cache: Path) -> None:
    assert compiled_for_macos(layout_of(SPECS["bf16"], "neonbf16"), kernel_cache).is_file()
