"""Steps whose kernels overlap, on a GPU: the same bits as without, in every bucket, however often."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firelane.backends.contract import StepOutputs
from firelane.backends.cuda.assembly import assemble
from firelane.models.dense import dense_program
from firelane.program.ops import HeadShape
from tests.backends.cpu_harness import Chunk, small_spec

sys.path.insert(0, str(Path(__file__).parents[1] / "backends" / "cuda"))  # harnesses that stand beside tests
from cuda_harness import Machine, RandomWeights, limits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0), reason="needs sm_90"
    ),
]
# Six layers whose products take some microseconds each: kernels of several of them are in line at once.
SPEC = small_spec(
    vocab_size=4096,
    hidden_size=1024,
    mlp_size=2048,
    heads=HeadShape(heads=8, kv_heads=2, head_dim=128),
    windows=(0,) * 6,
)
SIZES = limits(max_num_seqs=32, max_num_batched_tokens=640, max_output_rows=64, num_blocks=160)
STEPS = 60


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "window"])
def weights(request: pytest.FixtureRequest) -> RandomWeights:
    return RandomWeights(dense_program(SPEC), window=request.param)


def on_gpu(value: Any) -> Any:
    """The tensors in records and tables, on the GPU."""
    if isinstance(value, torch.Tensor):
        return value.cuda()
    if isinstance(value, dict):
        return {name: on_gpu(entry) for name, entry in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: on_gpu(getattr(value, field.name)) for field in fields(value)})
    return value


def machine(weights: RandomWeights, *, overlap: bool, gemm: str) -> Machine:
    from firelane.backends.cuda.cuda_device import CudaDevice

    executor = assemble(
        weights.program,
        limits=SIZES,
        device=CudaDevice(),
        weights=on_gpu(weights.on_device),
        gemm=gemm,
        overlap=overlap,
    )
    return Machine(executor, weights)


def steps() -> Iterator[list[Chunk]]:
    """Prompts of many lengths, decoding of 1 to 32 sequences, and both in one step."""
    lengths = [1 + 7 * slot % 19 for slot in range(32)]
    yield [Chunk(slot, 0, length) for slot, length in enumerate(lengths)]
    for step in range(STEPS):
        some = range(0, 32, 1 + 31 * (step % 2)) if step % 5 else range(step % 7)
        chunks = [Chunk(slot, lengths[slot], 1 if slot or step % 11 else 40) for slot in some]
        for chunk in chunks:
            lengths[chunk.slot] += chunk.length
        if chunks:
            yield chunks


def run(m: Machine) -> list[bytes]:
    """What every step gives, to the bit."""
    rng = np.random.default_rng(5)
    for slot in range(32):
        m.greedy(slot, rng.integers(0, m.executor.vocab_size, 320).tolist())
    return [told(m.step(chunks), m.inputs.num_rows) for chunks in steps()]


def told(outputs: StepOutputs, rows: int) -> bytes:
    arrays = (outputs.tokens, outputs.logprobs, outputs.top_ids, outputs.top_logprobs)
    return b"".join(array[:rows].tobytes() for array in arrays)


@pytest.mark.parametrize("gemm", ["invariant", "library"])
def test_overlap_changes_no_bit(weights: RandomWeights, gemm: str) -> None:
    m = machine(weights, overlap=False, gemm=gemm)
    expected = run(m)
    m.executor.release()
    overlapping = machine(weights, overlap=True, gemm=gemm)
    for _ in range(3):
        assert run(overlapping) == expected
    overlapping.executor.release()
