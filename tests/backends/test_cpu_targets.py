"""On every instruction-set target a row's bits do not depend on the rows beside it: each size of a register
tile, one tile or several, gives what the row gives alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from firelane.native.machine import cpu_identity, supported_isas
from tests.backends.cpu_harness import Chunk, Machine, machine
from tests.backends.test_cpu_coded import SPECS
from tests.models.experts import EXPERT_SPECS, experts_program

TOKENS = 40
# Rows of one step after another: whole tiles, one more, and what is left.
SPLITS = [[40], [6, 7, 13, 14], [12, 2, 3, 23], [25, 15], [5, 4, 31]]


PROGRAMS = {"dense": SPECS["tied"], "experts": experts_program(EXPERT_SPECS["bf16-experts"])}
CASES = {
    f"{isa}/{name}": (isa, PROGRAMS[name]) for isa in supported_isas(cpu_identity()) for name in PROGRAMS
}


@pytest.fixture(scope="module", params=CASES)
def driven(request: pytest.FixtureRequest, kernel_cache) -> Iterator[Machine]:
    isa, program = CASES[request.param]
    m = machine(program, kernel_cache, isa=isa)
    yield m
    m.executor.release()


def scores(m: Machine, lengths: list[int]) -> bytes:
    """The log-probabilities of a prompt's tokens, read in chunks of these lengths."""
    m.greedy(0, np.random.default_rng(5).integers(0, 331, TOKENS + 1).tolist())
    m.give_blocks(0, range(8))
    found, at = [], 0
    for length in lengths:
        outputs = m.step([Chunk(0, at, length, score=True)])
        found.append(outputs.logprobs[:length].copy())
        at += length
    assert np.isfinite(found[0]).all()
    return np.concatenate(found).tobytes()


def test_a_row_gives_the_same_bits_in_every_tile(driven: Machine) -> None:
    alone = scores(driven, [1] * TOKENS)
    for lengths in SPLITS:
        assert scores(driven, lengths) == alone, f"{driven.executor.layout.isa}: rows {lengths}"
