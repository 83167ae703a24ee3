"""Small programs with random weights on the CUDA backend, every kernel of it in the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from matrices_harness import bits_of, coded_matrix, original_bits, plain_matrix, uncoded_matrix
from numpy.typing import NDArray

from firelane.backends.cuda.assembly import assemble
from firelane.backends.cuda.executor import CudaExecutor
from firelane.backends.cuda.weights.device_weights import DeviceWeights
from firelane.backends.cuda.weights.matrices import Matrix, PlainMatrix
from firelane.backends.cuda.weights.placement import is_matrix
from firelane.contract import Span, StepInputs, StepLimits, StepOutputs
from firelane.program.program import Program
from firelane.program.values import DType, Weight
from tests.backends.cpu_harness import Chunk, fill, set_greedy, with_spans
from tests.backends.cuda.host_device import HostDevice
from tests.models.dense import DenseSpec, dense_program
from tests.weights.files import to_bf16


def limits(**changes: Any) -> StepLimits:
    settings: dict[str, Any] = {
        "max_num_seqs": 6,
        "max_num_batched_tokens": 80,
        "max_output_rows": 24,
        "max_model_len": 320,
        "block_size": 64,
        "num_blocks": 40,
    }
    return StepLimits(**{**settings, **changes})


@dataclass
class RandomWeights:
    """The same random weights for the executor, in the form asked for, and in float32 for the reference."""

    program: Program
    coded: bool = False
    seed: int = 0
    values: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    matrices: dict[str, Matrix] = field(default_factory=dict)
    vectors: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        for weight in self.program.weights:
            values = draw(rng, weight)
            if not is_matrix(weight):
                self.values[weight.name] = values
                self.vectors[weight.name] = torch.from_numpy(values.reshape(-1).copy())
                continue
            bf16 = weight.dtype is DType.BF16
            bits = to_bf16(values) if bf16 else values
            segments = weight.matrices * (2 if weight.layout.is_gated else 1)
            parts = np.split(bits.reshape(weight.height, weight.k), segments)
            self.values[weight.name] = widen(bits) if bf16 else values
            self.matrices[weight.name] = self._matrix(parts, bf16=bf16)

    def _matrix(self, parts: Sequence[np.ndarray], *, bf16: bool) -> Matrix:
        if not bf16 or parts[0].shape[1] % 128:
            return uncoded_matrix(parts)
        return coded_matrix(parts) if self.coded else plain_matrix(parts)

    @property
    def on_device(self) -> DeviceWeights:
        return DeviceWeights(matrices=self.matrices, vectors=self.vectors)


def draw(rng: np.random.Generator, weight: Weight) -> NDArray[np.float32]:
    """With zeros of both signs, and some values so small that they are escapes."""
    if not is_matrix(weight):
        offset = 0.0 if "bias" in weight.name else 1.0
        return (offset + 0.2 * rng.standard_normal(weight.shape)).astype(np.float32)
    values = rng.standard_normal(weight.shape) * 1.2 * weight.k**-0.5
    odd = rng.integers(0, 3000, weight.shape)
    values *= np.select([odd < 5, odd == 5, odd == 6, odd == 7], [2.0**-25, 0.0, -0.0, 30.0], 1.0)
    return values.astype(np.float32)


def widen(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass
class Machine:
    """An executor and the inputs that drive it. Slot s owns blocks[s], in a shuffled order."""

    executor: CudaExecutor
    weights: RandomWeights
    inputs: StepInputs = field(init=False)

    def __post_init__(self) -> None:
        sizes = self.executor.limits
        self.inputs = StepInputs.allocate(sizes, self.executor.features_in)
        self.shuffle(0)

    def shuffle(self, seed: int) -> None:
        """Give the slots other blocks; what they have in the cache is lost."""
        sizes = self.executor.limits
        order = np.random.default_rng(seed).permutation(sizes.num_blocks)
        tables = self.executor.state.block_tables
        groups, _, per_slot = tables.shape
        slots = min(sizes.num_blocks // (groups * per_slot), sizes.max_num_seqs)
        tables[:, :slots] = order[: groups * slots * per_slot].reshape(groups, slots, per_slot)

    def greedy(self, slot: int, prompt: Sequence[int], logprobs: int = 5) -> None:
        """Set up a slot for greedy decoding."""
        set_greedy(self.executor.state, slot, prompt, logprobs)

    def step(self, chunks: Sequence[Chunk]) -> StepOutputs:
        """Each chunk samples after its last token (unless its prompt goes on), or scores all its tokens."""
        self.fill(chunks)
        self.executor.submit(self.inputs)
        return self.executor.wait()

    def fill(self, chunks: Sequence[Chunk]) -> StepInputs:
        return fill(self.inputs, chunks)


def machine(
    spec: DenseSpec | Program,
    *,
    sizes: StepLimits | None = None,
    coded: bool = False,
    seed: int = 0,
    warm: bool = False,
    spans: Sequence[Span] = (),
) -> Machine:
    """spans: of the attention layers, in place of those of the spec."""
    program = spec if isinstance(spec, Program) else dense_program(spec)
    weights = RandomWeights(with_spans(program, spans) if spans else program, coded=coded, seed=seed)
    executor = assemble(
        weights.program,
        limits=replace(
            sizes or limits(), spans=weights.program.spans, state_bytes=weights.program.state_bytes
        ),
        device=HostDevice(warm=warm),
        weights=weights.on_device,
    )
    return Machine(executor, weights)


def unpacked(matrix: Matrix) -> NDArray[np.float32]:
    """The true weights of a matrix, padding included."""
    if isinstance(matrix, PlainMatrix) and matrix.data.dtype == torch.float32:
        return matrix.data.numpy()
    return widen(original_bits(matrix))


def as_float(tensor: torch.Tensor) -> NDArray[np.float32]:
    return widen(bits_of(tensor)) if tensor.dtype == torch.bfloat16 else tensor.numpy()
