"""Weights in lossless coded forms give the bits that plain bf16 weights give: all activations of a step, on
each instruction set, for any number of rows, whether a panel is decoded once or for each tile of rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from firelane.native.machine import cpu_identity, supported_isas
from firelane.program.ops import HeadShape
from firelane.program.values import DType
from firelane.weights.formats import Format
from tests.backends.cpu_harness import HERE, Chunk, Machine, machine, small_spec
from tests.models.experts import ExpertsSpec, experts_program

FORMS = (Format.PANEL_CODED4, Format.PANEL_CODED3)
# Widths that both forms take: multiples of 16, not of a panel. Heads are together as wide as the hidden
# state, so that a third less is compiled.
SPECS = {
    "tied": small_spec(
        hidden_size=112,
        mlp_size=208,
        heads=HeadShape(heads=7, kv_heads=1, head_dim=16),
        tied_embeddings=True,
        mlp_bias=True,
    ),
    "untied": small_spec(hidden_size=176, mlp_size=80, heads=HeadShape(heads=11, kv_heads=1, head_dim=16)),
    "experts": experts_program(
        ExpertsSpec(hidden_size=112, width=48, experts=5, picks=2, dtype=DType.BF16, shared=True)
    ),
}
# The best instruction set, and those that decode in another way.
FORMS_OF = {isa: FORMS for isa in supported_isas(cpu_identity())} | {"portable": FORMS[:1]}
CASES = [(HERE, "tied"), (HERE, "untied"), (HERE, "experts")]
CASES += [(isa, "tied") for isa in supported_isas(cpu_identity()) if isa != HERE]
# Rows: each size of a tile, and one to five tiles.
STEPS = [[Chunk(0, 0, rows)] for rows in (*range(1, 14), 17, 23, 25, 36, 41, 60)]
STEPS.append([Chunk(0, 60, 1), Chunk(1, 0, 30), Chunk(2, 0, 5, score=True)])


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "/".join(case))
def plain(request, kernel_cache) -> Iterator[tuple[str, str, list[bytes]]]:
    isa, spec = request.param
    m = machine(SPECS[spec], kernel_cache, isa=isa)
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
    for form in FORMS_OF[isa]:
        m = machine(SPECS[spec], kernel_cache, isa=isa, form=form, decode_once_from=decode_once_from)
        try:
            for chunks, got, want in zip(STEPS, run(m), expected, strict=True):
                assert got == want, f"{isa} {spec} {form.value}: step {chunks}"
        finally:
            m.executor.release()


def test_coded_weights_take_less_memory(kernel_cache) -> None:
    sizes = {}
    for form in (None, *FORMS):
        m = machine(SPECS["tied"], kernel_cache, form=form)
        sizes[form] = m.executor.weights_bytes
        m.executor.release()
    assert sizes[Format.PANEL_CODED3] < sizes[Format.PANEL_CODED4] < 0.8 * sizes[None]
