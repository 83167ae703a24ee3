"""The slow NumPy run of a Program: the oracle of every kernel test.

All arithmetic is float32. A value of dtype BF16 is rounded to nearest even when it is written, and so are
keys and values when they go to the cache, or they become what their codes stand for. The cache is plain: per
layer, one row of positions a slot, NaN where nothing was written yet; so are recurrent states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.contract import AdapterTensors, SlotState, StepInputs
from firelane.program.integer_products import IntegerMatrix
from firelane.program.program import Program
from firelane.program.recipes import Padding, Piece, widened
from firelane.program.reference_step import ReferenceCache, ReferenceStep
from firelane.program.values import Weight

F32 = NDArray[np.float32]
NO_INTEGERS: Mapping[str, Sequence[IntegerMatrix]] = MappingProxyType({})


class ReferenceExecutor:
    """Runs whole steps of a Program, with the semantics of contract, except that block tables are
    not used.
    """

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, F32],
        *,
        slots: int,
        max_len: int,
        snapshots: int = 0,
        integers: Mapping[str, Sequence[IntegerMatrix]] = NO_INTEGERS,
    ) -> None:
        """integers: as in ReferenceStep. `adapters`, empty at first, too."""
        self.program = program
        self.weights = weights
        self.integers = integers
        self.adapters: dict[int, AdapterTensors] = {}
        self.cache = empty_cache(program, slots=slots, positions=max_len)
        self.states = empty_states(program, slots + snapshots)

    def step(self, inputs: StepInputs, state: SlotState) -> ReferenceStep:
        """Run one step; `outputs` of the result holds what was sampled, `values` every intermediate."""
        step = self.begin(inputs, state)
        for op in self.program.ops:
            op.reference(step)
        return step

    def begin(self, inputs: StepInputs, state: SlotState) -> ReferenceStep:
        """The step before its first op, for tests that run op by op."""
        chunks = range(inputs.num_chunks)
        lens = [int(inputs.chunk_len[i]) for i in chunks]
        slots = np.repeat(inputs.chunk_slot[: inputs.num_chunks].astype(np.int64), lens)
        ranges = [
            np.arange(inputs.chunk_start[i], inputs.chunk_start[i] + inputs.chunk_len[i]) for i in chunks
        ]
        positions = np.concatenate([np.empty(0, np.int64), *ranges]).astype(np.int64)
        return ReferenceStep(
            token_ids=state.tokens[slots, positions].astype(np.int64),
            slots=slots,
            positions=positions,
            row_token=inputs.row_token[: inputs.num_rows].astype(np.int64),
            weights=self.weights,
            integers=self.integers,
            adapters=self.adapters,
            cache=self.cache,
            states=self.states,
            inputs=inputs,
            state=state,
            hidden=self.program.head.x if self.program.head else None,
            features=np.full((len(positions), self.program.features_out), np.nan, np.float32),
        )


def reference_weights(program: Program, tensor: Callable[[str], NDArray[Any]]) -> dict[str, F32]:
    """All weights of the Program in float32, from checkpoint tensors by name (float32, float16, or bf16 bits
    as uint16).
    """
    return {w.name: materialise(w, tensor) for w in program.weights}


def materialise(weight: Weight, tensor: Callable[[str], NDArray[Any]]) -> F32:
    """The weight in float32, from tensors by name (float32, float16, or bf16 bits as uint16): plainly, the
    reference of what packing does."""
    pieces = [_materialised(piece, widened(tensor(piece.tensor))) for piece in weight.pieces]
    return np.concatenate(pieces).reshape(weight.shape)


def _materialised(piece: Piece, tensor: F32) -> F32:
    seen = tensor.reshape(piece.view or piece.shape)
    seen = seen.transpose(piece.order) if piece.order else seen
    for axis, kept in enumerate(piece.take):
        seen = seen if kept is None else seen.take(kept, axis)
    flat = seen.reshape(-1) if piece.is_vector else seen.reshape(-1, seen.shape[-1])
    flat = flat + np.float32(piece.plus) if piece.plus else flat
    flat = flat if piece.padding is None else _with_zeros(flat, piece.padding)
    flat = flat if piece.rows is None else flat[piece.rows.start : piece.rows.stop]
    return flat if piece.columns is None else flat[:, piece.columns.start : piece.columns.stop]


def _with_zeros(flat: F32, padding: Padding) -> F32:
    axis = flat.ndim - 1 if padding.of_columns else 0
    groups = np.split(flat, flat.shape[axis] // padding.own, axis)
    shape = list(groups[0].shape)
    shape[axis] = padding.room - padding.own
    zeros = np.zeros(shape, np.float32)
    return np.concatenate([part for group in groups for part in (group, zeros)], axis)


def empty_cache(program: Program, *, slots: int, positions: int) -> ReferenceCache:
    """A cache in which nothing was written yet."""

    cache = ReferenceCache(keys={}, values={}, dtypes={c.layer: c.dtype for c in program.cache_layers})
    for layer, s in ((c.layer, c.shape) for c in program.cache_layers):
        rows, is_view = (slots, positions, s.kv_heads), s.shared and s.code is None
        keys = np.full((*rows, s.head_dim), np.nan, np.float32)
        apart = np.full((*rows, 0 if is_view else s.v_dim), np.nan, np.float32)
        cache.keys[layer], cache.values[layer] = keys, keys[..., : s.v_dim] if is_view else apart
        if s.code is not None:
            cache.codes[layer], cache.value_scales[layer] = s.code, np.full(rows, np.nan, np.float32)
    return cache


def empty_states(program: Program, count: int) -> dict[str, F32]:
    """A pool of recurrent states in which nothing was written yet, by name of the state layer."""
    return {layer.name: np.full((count, *layer.shape), np.nan, np.float32) for layer in program.state_layers}
