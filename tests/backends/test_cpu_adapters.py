"""Low-rank adapters on the CPU, with every instruction set that the machine runs: op by op against the
reference; bits that hang on a row and its own adapter alone; what a place has over its life."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from firelane.backends.cpu.codegen.codegen import generate
from firelane.contract import AdapterLimits, AdapterTensors, LowRank
from firelane.errors import UsageError
from firelane.native.machine import cpu_identity, supported_isas
from firelane.program.ops import HeadShape
from firelane.program.program import Program
from firelane.program.reference import ReferenceExecutor
from firelane.program.values import DType
from tests.backends.cpu_harness import (
    Chunk,
    Machine,
    apart,
    limits,
    machine,
    small_spec,
)
from tests.backends.test_cpu_ops import check_step
from tests.models.adapters import random_adapter
from tests.models.dense import dense_program

ADAPTERS = AdapterLimits(max_adapters=3, max_rank=20)
CASES = [(isa, dtype) for isa in supported_isas(cpu_identity()) for dtype in (DType.BF16, DType.F32)]
STEPS = [
    [Chunk(0, 0, 1)],
    [Chunk(0, 1, 32), Chunk(2, 0, 64), Chunk(1, 0, 3)],
    [Chunk(2, 64, 1), Chunk(1, 3, 1), Chunk(0, 33, 45), Chunk(3, 0, 13, sample=False)],
    [Chunk(3, 13, 20, score=True)],
]


def program(dtype: DType) -> Program:
    """Head widths that are no multiple of a vector: parts meet within a block."""
    heads = HeadShape(heads=3, kv_heads=1, head_dim=48)
    return dense_program(
        small_spec(dtype=dtype, heads=heads, windows=(0,), mlp_size=184, qkv_bias=True, mlp_bias=True)
    )


def ready(m: Machine, places: Sequence[int] = (1, 2, 0, 3)) -> Machine:
    rng = np.random.default_rng(3)
    for slot, place in enumerate(places):
        m.greedy(slot, rng.integers(0, 331, 200).tolist())
        m.give_blocks(slot, rng.permutation(100)[: m.executor.limits.blocks_per_seq] + 100 * slot)
        m.executor.state.adapter[slot] = place
    return m


def adapter(m: Machine, seed: int, **changes: float) -> AdapterTensors:
    assert m.executor.adapters is not None
    return random_adapter(m.executor.adapters.modules, rank=20, seed=seed, **changes)


def put(m: Machine, place: int, tensors: AdapterTensors) -> AdapterTensors:
    assert m.executor.adapters is not None
    m.executor.adapters.put(place, tensors)
    return tensors


@pytest.mark.parametrize(("isa", "dtype"), CASES)
def test_ops_are_those_of_the_reference(isa, dtype, kernel_cache) -> None:
    sizes = limits(num_blocks=400)
    m = ready(machine(program(dtype), kernel_cache, isa=isa, sizes=sizes, place=apart, adapters=ADAPTERS))
    reference = ReferenceExecutor(m.executor.layout.program, m.weights.values, slots=32, max_len=320)
    reference.adapters |= {1: put(m, 1, adapter(m, 1)), 2: put(m, 2, adapter(m, 2, keep=0.5))}
    for chunks in STEPS:
        check_step(m, reference, chunks)
    m.executor.release()


def logprobs_of(m: Machine, slot: int, tokens: Sequence[int], chunks: Sequence[int]) -> np.ndarray:
    """Log-probabilities of a prompt, computed in chunks of these lengths."""
    m.greedy(slot, [*tokens])
    found: list[np.ndarray] = []
    at = 0
    for length in chunks:
        outputs = m.step([Chunk(slot, at, length, score=True)])
        found.append(outputs.logprobs[:length].copy())
        at += length
    return np.concatenate(found)


@pytest.fixture(scope="module")
def driven(kernel_cache) -> Machine:
    sizes = limits(num_blocks=400)
    return ready(machine(program(DType.BF16), kernel_cache, sizes=sizes, place=apart, adapters=ADAPTERS))


PROMPT = np.random.default_rng(11).integers(0, 331, 41).tolist()


def test_an_adapter_changes_its_own_sequences_alone(driven: Machine) -> None:
    """Slots 0 and 1 have adapters, slot 2 has none."""
    assert driven.executor.adapters is not None
    driven.executor.adapters.clear(1)
    plain = [logprobs_of(driven, slot, PROMPT, [40]) for slot in (0, 1, 2)]
    np.testing.assert_array_equal(plain[0], plain[2])
    put(driven, 1, adapter(driven, 5))
    changed = logprobs_of(driven, 0, PROMPT, [40])
    assert np.abs(changed - plain[0]).max() > 0.1
    np.testing.assert_array_equal(logprobs_of(driven, 2, PROMPT, [40]), plain[2])


def test_bits_do_not_depend_on_chunks(driven: Machine) -> None:
    put(driven, 1, adapter(driven, 6))
    whole = logprobs_of(driven, 0, PROMPT, [40])
    for chunks in ([1] * 40, [7, 33], [16, 16, 8], [3, 1, 12, 24]):
        np.testing.assert_array_equal(logprobs_of(driven, 0, PROMPT, chunks), whole)


def test_factors_of_zeros_leave_the_bits_of_the_base(driven: Machine) -> None:
    base = logprobs_of(driven, 2, PROMPT, [40])
    tensors = adapter(driven, 7)
    put(driven, 1, {m: LowRank(f.a, np.zeros_like(f.b), f.scale) for m, f in tensors.items()})
    np.testing.assert_array_equal(logprobs_of(driven, 0, PROMPT, [40]), base)


def test_a_place_has_what_was_put_last(driven: Machine) -> None:
    one, two = adapter(driven, 8), adapter(driven, 9, keep=0.4)
    put(driven, 1, two)
    want = logprobs_of(driven, 0, PROMPT, [40])
    put(driven, 1, one)
    assert np.abs(logprobs_of(driven, 0, PROMPT, [40]) - want).max() > 0.01
    put(driven, 1, two)
    np.testing.assert_array_equal(logprobs_of(driven, 0, PROMPT, [40]), want)


def test_what_does_not_fit_leaves_a_place_as_it_was(driven: Machine) -> None:
    put(driven, 1, adapter(driven, 10))
    want = logprobs_of(driven, 0, PROMPT, [40])
    module, factors = next(iter(adapter(driven, 10).items()))
    wide = LowRank(
        np.ones((21, factors.a.shape[1]), np.uint16), np.ones((len(factors.b), 21), np.uint16), 1.0
    )
    bad = (
        ({f"{module}.x": factors}, "no such product"),
        ({module: LowRank(factors.a[:, :-1], factors.b, 1.0)}, "of shape"),
        ({module: wide}, "rank 21"),
    )
    for tensors, message in bad:
        with pytest.raises(UsageError, match=message):
            put(driven, 1, tensors)
    np.testing.assert_array_equal(logprobs_of(driven, 0, PROMPT, [40]), want)


def test_programs_without_adapters_are_as_they_were(kernel_cache) -> None:
    m = machine(program(DType.F32), kernel_cache, place=apart)
    source = generate(m.executor.layout)
    assert "lora" not in source
    assert m.executor.adapters is None
    m.executor.release()
