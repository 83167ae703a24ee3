"""Weights in lossless coded forms give the bits that plain bf16 weights give: all activations of a step, on
each instruction set, for any number of rows, whether a panel is decoded once or for each tile of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from firelane.native.machine import cpu_identity, supported_isas
from firelane.program.ops import HeadShape
from firelane.program.values import DType, Weight
from firelane.weights.formats.formats import Format
from tests.backends.cpu_harness import HERE, Chunk, Machine, RandomWeights, apart, limits, machine, small_spec
from tests.models.dense import dense_program
from tests.models.experts import ExpertsSpec, experts_program
from tests.models.joined import joined

FORMS = (Format.PANEL_CODED4, Format.PANEL_CODED3)
# Widths that both forms take: multiples of 16, not of a panel. Heads are together as wide as the hidden
# state, so that a third less is compiled.
TIED = small_spec(
    hidden_size=112,
    mlp_size=208,
    heads=HeadShape(heads=7, kv_heads=1, head_dim=16),
    tied_embeddings=True,
    mlp_bias=True,
)
SPECS = {
    "tied": joined({"table": dense_program(replace(TIED, windows=())), "tied": dense_program(TIED)}),
    "untied": small_spec(hidden_size=176, mlp_size=80, heads=HeadShape(heads=11, kv_heads=1, head_dim=16)),
    "experts": experts_program(
        ExpertsSpec(
            hidden_size=112, width=48, experts=5, picks=2, dtype=DType.BF16, shared=True, routes=({}, {})
        )
    ),
}


def in_turns(weight: Weight) -> Format:
    """Layers are alike, and take both forms in turns: each product is compiled with both at once. So do the
    two tables of "tied", which are looked up and multiplied."""
    second = "layers.1." in weight.name or weight.name == "tied/embed"
    return FORMS[second]


CASES = [(HERE, "tied"), (HERE, "untied"), (HERE, "experts")]
CASES += [(isa, "tied") for isa in supported_isas(cpu_identity()) if isa != HERE]
# Rows: each size of a tile, and one to five tiles.
STEPS = [[Chunk(0, 0, rows)] for rows in (*range(1, 14), 17, 23, 25, 36, 41, 60)]
STEPS.append([Chunk(0, 60, 1), Chunk(1, 0, 30), Chunk(2, 0, 5, score=True)])
SIZES = limits(max_num_batched_tokens=64)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "/".join(case))
def plain(request, kernel_cache) -> Iterator[tuple[str, str, list[bytes]]]:
    isa, spec = request.param
    m = machine(SPECS[spec], kernel_cache, isa=isa, sizes=SIZES, place=apart)
    yield isa, spec, run(m)
    m.executor.release()


def run(m: Machine) -> list[bytes]:
    """The arena and the sampled tokens after each step."""
    rng = np.random.default_rng(3)
    for slot in range(3):
        m.give_blocks(slot, list(range(slot * 8, slot * 8 + 8)))
        m.greedy(slot, rng.integers(0, 331, 70).tolist())
    m.executor.arena[:] = 0
    found = []
    for chunks in STEPS:
        outputs = m.step(chunks)
        rows = m.inputs.num_rows
        found.append(m.executor.arena.tobytes() + outputs.tokens[:rows].tobytes())
        assert np.isfinite(outputs.logprobs[:rows]).all()
    return found


@pytest.mark.parametrize("decode_once_from", [2, 3, 99])
def test_same_bits_as_plain_weights(plain, kernel_cache, decode_once_from: int) -> None:
    isa, spec, expected = plain
    m = machine(
        SPECS[spec],
        kernel_cache,
        isa=isa,
        sizes=SIZES,
        place=apart,
        form=in_turns,
        decode_once_from=decode_once_from,
    )
    try:
        for chunks, got, want in zip(STEPS, run(m), expected, strict=True):
            assert got == want, f"{isa} {spec}: step {chunks}"
    finally:
        m.executor.release()


def test_coded_weights_take_less_memory() -> None:
    program = dense_program(TIED)
    matrices = [w.name for w in program.weights if w.is_matrix]
    plain, coded4, coded3 = (
        RandomWeights(program, forms=dict.fromkeys(matrices, form) if form else {}).nbytes
        for form in (None, *FORMS)
    )
    assert coded3 < coded4 < 0.8 * plain
