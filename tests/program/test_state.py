"""Recurrent state in a Program, and in the reference."""

from __future__ import annotations

import numpy as np
import pytest

from firelane.contract import NO_SNAPSHOT, ZERO_STATE, StepInputs, StepLimits
from firelane.program.printer import format_program
from firelane.program.program import Program
from firelane.program.reference import empty_states
from firelane.program.reference_step import ReferenceCache, ReferenceStep
from firelane.program.state import StateLayer, state_bytes, state_offsets
from firelane.program.values import DType, Rows, Value
from tests.program.fakes import Fake
from tests.program.running_sum import RunningSum

WIDTH = 3
X = Value("x", Rows.TOKEN, WIDTH, DType.F32)
OUT = Value("out", Rows.TOKEN, WIDTH, DType.F32)
OP = RunningSum(x=X, layer="sum", out=OUT)
SLOTS, SNAPSHOTS = 3, 2


def program(*ops) -> Program:
    return Program(name="toy", vocab_size=1, max_model_len=1, ops=(Fake(out=X), *ops))


def running_sums(x: np.ndarray) -> np.ndarray:
    out, state = np.empty_like(x), np.zeros(WIDTH, np.float32)
    for row, token in enumerate(x):
        out[row] = state = np.float32(0.75) * state + token
    return out


def step_of(chunks, x, states) -> ReferenceStep:
    """chunks: (slot, start, length, from, save)."""
    inputs = StepInputs.allocate(
        StepLimits(
            max_num_seqs=SLOTS,
            max_num_batched_tokens=64,
            max_output_rows=3,
            max_model_len=64,
            block_size=4,
            num_blocks=1,
            num_snapshots=SNAPSHOTS,
            state_bytes=64,
        )
    )
    inputs.num_chunks, inputs.num_tokens = len(chunks), len(x)
    for i, (slot, start, length, state_from, save) in enumerate(chunks):
        inputs.chunk_slot[i], inputs.chunk_start[i], inputs.chunk_len[i] = slot, start, length
        inputs.chunk_from[i], inputs.chunk_save[i] = state_from, save
    slots = np.repeat([c[0] for c in chunks], [c[2] for c in chunks])
    positions = np.concatenate([np.arange(c[1], c[1] + c[2]) for c in chunks])
    return bare_step(slots, positions, x, states, inputs=inputs)


def bare_step(slots, positions, x, states, inputs=None) -> ReferenceStep:
    return ReferenceStep(
        token_ids=np.zeros(len(x), np.int64),
        slots=np.asarray(slots),
        positions=np.asarray(positions),
        row_token=np.empty(0, np.int64),
        weights={},
        cache=ReferenceCache(keys={}, values={}, dtypes={}),
        states=states,
        inputs=inputs,
        values={X: x},
    )


def run(step: ReferenceStep) -> np.ndarray:
    OP.reference(step)
    return step.read(OUT)


def random(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)


def test_sizes() -> None:
    layers = (StateLayer("a", (3, 5)), StateLayer("b", (16,)), StateLayer("c", (17,)))
    assert state_offsets(layers) == {"a": 0, "b": 64, "c": 128}
    assert state_bytes(layers) == 256
    assert (state_bytes(()), state_offsets(())) == (0, {})


def test_a_program_lists_the_states_of_its_ops() -> None:
    other = RunningSum(x=OUT, layer="other", out=Value("end", Rows.TOKEN, WIDTH, DType.F32))
    found = program(OP, other)
    assert found.state_layers == (StateLayer("sum", (WIDTH,)), StateLayer("other", (WIDTH,)))
    assert found.state_bytes == 128
    assert program().state_bytes == 0


def test_two_states_of_one_name_are_refused() -> None:
    same = RunningSum(x=OUT, layer="sum", out=Value("end", Rows.TOKEN, WIDTH, DType.F32))
    with pytest.raises(AssertionError, match="two state layers of one name"):
        program(OP, same)


def test_limits_count_live_states_and_snapshots() -> None:
    limits = dict(max_num_seqs=3, max_num_batched_tokens=8, max_output_rows=3, max_model_len=8, block_size=4)
    assert StepLimits(**limits, num_blocks=2).num_states == 0
    assert StepLimits(**limits, num_blocks=2, num_snapshots=5, state_bytes=64).num_states == 8


@pytest.mark.parametrize("length", [1, 7, 20])
def test_chunks_make_no_difference(length: int) -> None:
    """Two sequences run side by side, from states that were never written."""
    x = {0: random(20), 2: random(19)}
    states = empty_states(program(OP), SLOTS)
    out = {slot: [] for slot in x}
    for start in range(0, 20, length):
        parts = {slot: rows[start : start + length] for slot, rows in x.items() if start < len(rows)}
        chunks = [
            (slot, start, len(rows), slot if start else ZERO_STATE, NO_SNAPSHOT)
            for slot, rows in parts.items()
        ]
        got = run(step_of(chunks, np.concatenate(list(parts.values())), states))
        for slot, rows in zip(parts, np.split(got, np.cumsum([c[2] for c in chunks])[:-1]), strict=True):
            out[slot].append(rows)
    for slot, rows in x.items():
        np.testing.assert_array_equal(np.concatenate(out[slot]), running_sums(rows))
        np.testing.assert_array_equal(states["sum"][slot], running_sums(rows)[-1])
    assert np.isnan(states["sum"][1]).all()


def test_a_snapshot_is_written_beside_the_live_state_and_read_unchanged() -> None:
    x, snapshot = random(12), SLOTS + 1
    states = empty_states(program(OP), SLOTS + SNAPSHOTS)
    run(step_of([(0, 0, 8, ZERO_STATE, snapshot)], x[:8], states))
    saved = states["sum"][snapshot].copy()
    np.testing.assert_array_equal(saved, states["sum"][0])
    got = run(
        step_of(
            [(0, 8, 4, 0, NO_SNAPSHOT), (1, 8, 2, snapshot, NO_SNAPSHOT)], x[[*range(8, 12), 8, 9]], states
        )
    )
    np.testing.assert_array_equal(got, running_sums(x)[[8, 9, 10, 11, 8, 9]])
    np.testing.assert_array_equal(states["sum"][snapshot], saved)


def test_without_inputs_chunks_follow_from_slots_and_positions() -> None:
    x = random(5)
    states = empty_states(program(OP), SLOTS)
    states["sum"][2] = 4.0
    got = run(bare_step([1, 1, 2, 2, 0], [0, 1, 6, 7, 0], x, states))
    np.testing.assert_array_equal(got[:2], running_sums(x[:2]))
    np.testing.assert_array_equal(got[2], np.float32(0.75) * np.full(WIDTH, 4, np.float32) + x[2])
    np.testing.assert_array_equal(got[4], x[4])
    np.testing.assert_array_equal(states["sum"], got[[4, 1, 3]])


def test_the_printed_title_tells_the_state_of_a_sequence() -> None:
    assert ", state 64 B a sequence; " in format_program(program(OP))
    assert "state" not in format_program(program()).splitlines()[0]
