"""Ops of encoders on the CPU, each against its NumPy reference on the inputs that the kernel had."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from firelane.contract import EMBED, Bidirectional
from firelane.models.registry import load_program
from firelane.native.machine import cpu_identity, supported_isas
from firelane.program.ops import Attention, Pool
from firelane.program.program import Program
from firelane.program.reference import ReferenceExecutor
from firelane.program.values import DType, Rows
from tests.backends.cpu_harness import HERE, Chunk, Machine, apart, limits, machine
from tests.backends.test_cpu_ops import ATTENTION_BOUNDS, BOUNDS, read
from tests.models.toy_encoders import ENCODERS

CHUNKS = [Chunk(1, 0, 65), Chunk(0, 0, 1), Chunk(3, 0, 16), Chunk(2, 0, 130)]
NEAR = Bidirectional(20)
DTYPES = {"bf16": DType.BF16, "f32": DType.F32}
CASES = {
    f"{isa}/{family}/{dtype}": (isa, family, dtype)
    for isa in supported_isas(cpu_identity())
    for family in (ENCODERS if isa == HERE else ("bert", "modernbert"))
    for dtype in DTYPES
}


def narrowed(program: Program) -> Program:
    """The same, whose second layer sees a few positions on both sides."""
    second = [op for op in program.ops if isinstance(op, Attention)][1]
    ops = tuple(replace(op, span=NEAR) if op is second else op for op in program.ops)
    return replace(program, ops=ops)


@pytest.fixture(scope="module", params=CASES)
def driven(request: pytest.FixtureRequest, kernel_cache: Path) -> Iterator[Machine]:
    isa, family, dtype = CASES[request.param]
    program = narrowed(load_program(ENCODERS[family](), dtype=DTYPES[dtype]))
    m = machine(program, kernel_cache, isa=isa, place=apart, sizes=limits(max_model_len=160))
    yield m
    m.executor.release()


def test_ops_agree_with_their_references(driven: Machine) -> None:
    program, sizes = driven.executor.layout.program, driven.executor.limits
    reference = ReferenceExecutor(
        program, driven.weights.values, slots=sizes.max_num_seqs, max_len=sizes.max_model_len
    )
    rng = np.random.default_rng(3)
    for slot in range(4):
        driven.greedy(slot, rng.integers(0, program.vocab_size, 160).tolist())
        driven.give_blocks(slot, rng.permutation(100)[: sizes.blocks_per_seq] + 100 * slot)
    driven.executor.state.sampling["second_text"][2] = 40
    driven.executor.arena[:] = 0xFF
    driven.fill(CHUNKS)
    outputs = driven.again(EMBED)
    step = reference.begin(driven.inputs, driven.executor.state)
    counts = {Rows.TOKEN: driven.inputs.num_tokens, Rows.OUTPUT: driven.inputs.num_rows}
    for op in program.ops:
        op.reference(step)
        bounds = ATTENTION_BOUNDS if isinstance(op, Attention) else BOUNDS
        for value in op.outputs:
            mine, expected = read(driven, value, counts[value.rows]), step.read(value)
            error = np.abs(mine - expected).max() / max(np.abs(expected).max(), 1e-30)
            assert error <= bounds[value.dtype], f"{type(op).__name__} {value.name}: error {error:.2e}"
            if isinstance(op, Pool):
                assert (mine == expected).all()
            step.values[value] = mine
    assert step.outputs is not None
    assert (outputs.hidden[: len(CHUNKS)] == step.outputs.hidden).all()
