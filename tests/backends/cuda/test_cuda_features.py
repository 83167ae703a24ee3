"""Features on a GPU: the kernels that read and tell them, whole steps against the reference, the contract of
all executors, and two steps in flight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from cuda_harness import Machine, RandomWeights, limits, machine
from rows_harness import assert_untouched, filled, poisoned_tables, random_split_k, rows_of, sum_of
from rows_harness import limits as table_limits

from firelane.backends.cuda.assembly import assemble
from firelane.backends.cuda.kernels.rows.features import read_features, tell_features
from firelane.backends.cuda.step.tables import PARITY, TOKENS
from firelane.contract import StepInputs
from firelane.program.reference import ReferenceExecutor
from firelane.program.values import DType
from tests.backends.cpu_harness import Chunk, fill
from tests.backends.cuda.host_device import poison
from tests.backends.cuda.late_device import LateDevice
from tests.backends.cuda.lean import lean
from tests.backends.features_contract import FeaturesContract
from tests.models.features import READ, TOLD, features_program, plain_program

STEPS = [
    [Chunk(0, 0, 21), Chunk(2, 0, 4)],
    [Chunk(2, 4, 1), Chunk(0, 21, 6, score=True), Chunk(3, 0, 2, sample=False)],
    [Chunk(0, 27, 1), Chunk(2, 5, 1), Chunk(3, 2, 1)],
]
BOUNDS = {DType.F32: 2e-4, DType.BF16: 0.15}


@pytest.fixture(autouse=True, scope="module")
def _lean():
    with lean():
        yield


def ready(m: Machine) -> Machine:
    rng = np.random.default_rng(7)
    for slot in range(4):
        m.greedy(slot, rng.integers(0, m.executor.vocab_size, 90).tolist())
    return m


def tables_of(tokens: int, *, parity: int):
    tables = poisoned_tables(table_limits())
    tables.counts[TOKENS], tables.counts[PARITY] = tokens, parity
    return tables


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize(("width", "rows"), [(80, 3), (1100, 5), (64, 0)])
def test_rows_are_read_of_the_set_of_the_step(width, rows, dtype):
    features = poison(torch.empty(2, 8, width))
    features[1] = torch.from_numpy(
        np.random.default_rng(width).standard_normal((8, width)).astype(np.float32)
    )
    out = rows_of(8, width, dtype)
    read_features(features, tables_of(rows, parity=1), out, max_rows=8).run()
    assert torch.equal(out[:rows, :width], features[1, :rows].to(dtype))
    assert_untouched(out, rows, width)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize(("width", "rows"), [(80, 3), (1100, 5), (64, 0)])
def test_rows_are_told_in_their_columns_of_the_set_of_the_step(width, rows, dtype):
    x = filled(np.random.default_rng(width).standard_normal((8, width)).astype(np.float32), 8, dtype)
    features = poison(torch.empty(2, 8, width + 50))
    tell_features(x, tables_of(rows, parity=1), features[..., 20 : 20 + width], max_rows=8).run()
    assert torch.equal(features[1, :rows, 20 : 20 + width], x[:rows, :width].float())
    features[1, :rows, 20 : 20 + width] = torch.nan
    assert features.isnan().all()


def test_a_split_k_value_is_told_and_written_for_others():
    split_k = random_split_k(np.random.default_rng(2), 5, 104, max_rows=8)
    features = poison(torch.empty(2, 8, 104))
    tell_features(split_k, tables_of(5, parity=0), features, max_rows=8).run()
    total = sum_of(split_k, 5)
    np.testing.assert_array_equal(features[0, :5].numpy(), total)
    np.testing.assert_array_equal(split_k.out[:5, :104].numpy(), total)
    assert features[1].isnan().all()


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32])
def test_features_are_those_of_the_reference(dtype: DType) -> None:
    program = features_program(dtype)
    m = ready(machine(program))
    reference = ReferenceExecutor(program, m.weights.values, slots=6, max_len=330)
    rng = np.random.default_rng(4)
    for chunks in STEPS:
        m.inputs.features[:] = rng.standard_normal(m.inputs.features.shape)
        tokens = m.executor.state.tokens.copy()
        found, rows = m.step(chunks).features, m.inputs.num_tokens
        drawn, m.executor.state.tokens[:] = m.executor.state.tokens.copy(), tokens
        expected = reference.step(m.inputs, m.executor.state).features
        m.executor.state.tokens[:] = drawn
        assert np.abs(found[:rows] - expected).max() < BOUNDS[dtype]
        np.testing.assert_array_equal(found[:rows, :READ], expected[:, :READ])


class TestCudaFeatures(FeaturesContract):
    def drive(self, program):
        return ready(machine(program))


class TestCudaFeaturesF32(FeaturesContract):
    dtype = DType.F32

    def drive(self, program):
        return ready(machine(program))


def test_two_steps_in_flight_read_and_tell_their_own_rows() -> None:
    """The device computes a step only when it is waited for."""
    assert in_flight(2) == in_flight(1)


def in_flight(depth: int) -> list[bytes]:
    weights = RandomWeights(features_program(DType.BF16))
    sizes = replace(limits(), spans=weights.program.spans)
    device, on_device = LateDevice(), weights.on_device
    executor = assemble(weights.program, limits=sizes, device=device, weights=on_device)
    m, rng = ready(Machine(executor, weights)), np.random.default_rng(9)
    sets = [StepInputs.allocate(sizes, executor.features_in) for _ in range(3)]
    found, waited = list[bytes](), list[int]()
    for number, chunks in enumerate(STEPS):
        inputs = fill(sets[number], chunks)
        inputs.features[:] = rng.standard_normal(inputs.features.shape)
        m.executor.submit(inputs)
        waited.append(inputs.num_tokens)
        if len(waited) == depth:
            found.append(executor.wait().features[: waited.pop(0)].tobytes())
    return found + [executor.wait().features[:tokens].tobytes() for tokens in waited]


def test_memory_is_there_for_features_alone() -> None:
    memory = ready(machine(plain_program(DType.BF16))).executor.memory
    assert (memory.features.read, memory.features.told) == (None, None)
    memory = ready(machine(features_program(DType.BF16))).executor.memory
    tokens = limits().max_num_batched_tokens
    assert memory.features.read is not None
    assert memory.features.told is not None
    assert memory.features.read.shape == (2, tokens, READ)
    assert memory.features.told.shape == (2, tokens, TOLD)
