"""Tables by position are made as far as steps come, with the same bits whenever that is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.backends.cpu import position_tables
from firelane.backends.cpu.position_tables import MADE_AT_ONCE, PositionTables
from firelane.contract import StepInputs
from firelane.program.ops import Rotary, Temperature
from tests.backends.cpu_harness import Chunk, limits, machine, small_spec

MAX_MODEL_LEN = 5 * MADE_AT_ONCE + 77
ROTARY = Rotary(inverse_frequencies=(1.0, 0.31, 0.007, 0.0), scale=1.25)
TEMPERATURE = Temperature(growth=0.1, period=13, offset=1)
POSITIONS = st.integers(0, MAX_MODEL_LEN)


@given(ends=st.lists(POSITIONS, max_size=8))
def test_rows_have_the_bits_of_a_table_that_is_made_at_once(ends: list[int]) -> None:
    tables = PositionTables([ROTARY, TEMPERATURE], MAX_MODEL_LEN)
    for end in ends:
        tables.make(end)
        for kind, array in zip((ROTARY, TEMPERATURE), tables.arrays, strict=True):
            whole = kind.table(MAX_MODEL_LEN)
            assert array.shape == whole.shape
            assert array[:end].tobytes() == whole[:end].tobytes()


@given(begin=POSITIONS, end=POSITIONS)
def test_a_part_of_a_table_has_the_bits_of_the_whole(begin: int, end: int) -> None:
    begin, end = sorted((begin, end))
    for kind in (ROTARY, TEMPERATURE):
        part = kind.table(end - begin, begin=begin)
        assert part.tobytes() == kind.table(MAX_MODEL_LEN)[begin:end].tobytes()


def test_rows_that_are_there_are_not_made_again() -> None:
    tables = PositionTables([TEMPERATURE], MAX_MODEL_LEN)
    tables.make(10)
    tables.arrays[0][:10] = -1.0
    tables.make(MADE_AT_ONCE + 1)
    assert (tables.arrays[0][:10] == -1.0).all()
    assert (tables.arrays[0][10 : MADE_AT_ONCE + 1] > 0).all()


def test_a_program_without_tables_makes_nothing() -> None:
    tables = PositionTables([], MAX_MODEL_LEN)
    tables.make(MAX_MODEL_LEN)
    assert tables.arrays == []


def test_a_step_makes_the_rows_of_all_its_chunks_and_of_no_other() -> None:
    inputs = StepInputs.allocate(limits())
    inputs.num_chunks = 2
    inputs.chunk_start[:3] = 2 * MADE_AT_ONCE, 0, 4 * MADE_AT_ONCE
    inputs.chunk_len[:3] = 1, 7, 1
    tables = PositionTables([TEMPERATURE], MAX_MODEL_LEN)
    tables.arrays[0].fill(np.nan)
    tables.make_for(inputs)
    assert (
        tables.arrays[0][: 2 * MADE_AT_ONCE + 1].tobytes()
        == TEMPERATURE.table(2 * MADE_AT_ONCE + 1).tobytes()
    )
    assert np.isnan(tables.arrays[0][4 * MADE_AT_ONCE])
    inputs.num_chunks = 3
    tables.make_for(inputs)
    assert tables.arrays[0][4 * MADE_AT_ONCE] == TEMPERATURE.table(1, begin=4 * MADE_AT_ONCE)[0]


def test_a_step_without_chunks_makes_nothing() -> None:
    tables = PositionTables([TEMPERATURE], MAX_MODEL_LEN)
    tables.arrays[0].fill(np.nan)
    tables.make_for(StepInputs.allocate(limits()))
    assert np.isnan(tables.arrays[0]).all()


def test_tokens_do_not_depend_on_when_rows_are_made(
    kernel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[bytes] = []
    for at_once in (1, 3, MADE_AT_ONCE):
        monkeypatch.setattr(position_tables, "MADE_AT_ONCE", at_once)
        driven = machine(small_spec(), kernel_cache)
        for array in driven.executor._positions.arrays:
            array.fill(np.nan)
        driven.give_blocks(0, range(3))
        driven.greedy(0, list(range(40)))
        steps = [driven.step([Chunk(0, 0, 20, sample=False)]), driven.step([Chunk(0, 20, 20)])]
        drawn.append(steps[-1].logprobs[:1].tobytes() + steps[-1].tokens[:1].tobytes())
        driven.executor.release()
    assert len(set(drawn)) == 1
