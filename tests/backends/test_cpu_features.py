"""Features on the CPU, with every instruction set that the machine runs: op by op against the reference, and
the contract of all executors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from firelane.backends import cpu
from firelane.backends.cpu.codegen.codegen import generate
from firelane.backends.cpu.codegen.feature_calls import BARRIER
from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.ranks.interconnect import usable_cores
from firelane.contract import StepInputs
from firelane.engine_config import ExecutorConfig
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.native.machine import cpu_identity, supported_isas
from firelane.program.features import with_hidden, with_streams
from firelane.program.program import Program
from firelane.program.reference import ReferenceExecutor
from firelane.program.values import DType
from tests.backends.cpu_harness import HERE, Chunk, apart, fill, fitted, limits, machine, set_greedy
from tests.backends.features_contract import FeaturesContract
from tests.backends.test_cpu_ops import check_step
from tests.models.families import make_checkpoint
from tests.models.features import features_program, plain_program

CASES = [(isa, dtype) for isa in supported_isas(cpu_identity()) for dtype in (DType.BF16, DType.F32)]
STEPS = [
    [Chunk(0, 0, 1)],
    [Chunk(0, 1, 32), Chunk(2, 0, 64)],
    [Chunk(2, 64, 1), Chunk(0, 33, 100), Chunk(3, 0, 13, sample=False)],
    [Chunk(3, 13, 20, score=True)],
]


def ready(m):
    rng = np.random.default_rng(3)
    for slot in range(4):
        m.greedy(slot, rng.integers(0, 331, 200).tolist())
        m.give_blocks(slot, rng.permutation(100)[: m.executor.limits.blocks_per_seq] + 100 * slot)
    return m


@pytest.mark.parametrize(("isa", "dtype"), CASES)
def test_features_are_those_of_the_reference(isa, dtype, kernel_cache) -> None:
    program = features_program(dtype)
    m = ready(machine(program, kernel_cache, isa=isa, sizes=limits(num_blocks=400), place=apart))
    reference = ReferenceExecutor(program, m.weights.values, slots=32, max_len=320)
    rng = np.random.default_rng(4)
    for chunks in STEPS:
        m.inputs.features[:] = rng.standard_normal(m.inputs.features.shape)
        check_step(m, reference, chunks)
    m.executor.release()


class TestCpuFeatures(FeaturesContract):
    threads = 2

    @pytest.fixture(autouse=True)
    def _cache(self, kernel_cache):
        self.cache_dir = kernel_cache

    def drive(self, program):
        return ready(machine(program, self.cache_dir, threads=self.threads, sizes=limits(num_blocks=400)))


class TestCpuFeaturesF32(TestCpuFeatures):
    dtype, threads = DType.F32, 3


@pytest.mark.skipif(len(usable_cores()) < 2, reason="ranks need a core each")
def test_ranks_tell_the_bits_of_one(tmp_path: Path, kernel_cache: Path) -> None:
    directory = make_checkpoint("llama3", "bfloat16", tmp_path)
    program = with_hidden(with_streams(load_program(read_config(directory)), (1, 0)))
    one, two = (told_by(program, directory, kernel_cache, ranks) for ranks in (1, 2))
    np.testing.assert_array_equal(one, two)
    assert np.isfinite(one).all()
    assert np.abs(one).min(axis=1).max() > 0


def told_by(program: Program, directory: Path, cache_dir: Path, ranks: int) -> NDArray[np.float32]:
    """Features of a prompt in two chunks."""
    config = ExecutorConfig(
        cache_dir=cache_dir, tensor_parallel_size=ranks, max_num_seqs=2, kv_cache_bytes=1 << 20
    )
    executor = cpu.load(program, directory, config, lambda *_: None)
    try:
        inputs = StepInputs.allocate(executor.limits)
        executor.state.block_tables[:, 0, :4] = np.arange(4)
        set_greedy(executor.state, 0, np.random.default_rng(3).integers(0, 250, 40).tolist(), 0)
        found = []
        for chunk in (Chunk(0, 0, 17, sample=False), Chunk(0, 17, 9)):
            executor.submit(fill(inputs, [chunk]))
            found.append(executor.wait().features[: chunk.length].copy())
        return np.concatenate(found)
    finally:
        executor.release()


@pytest.mark.parametrize(("program", "copies"), [(plain_program, 0), (features_program, 7)])
def test_sources_without_features_do_not_know_of_them(program, copies: int) -> None:
    made = program(DType.BF16)
    source = generate(Layout(program=made, limits=fitted(limits(), made), isa=HERE))
    assert source.count(BARRIER) == copies
