"""A step of the NumPy reference, as its ops see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firelane.contract import (
    EMBED,
    MAX_LOGPROBS,
    NO_SNAPSHOT,
    SAMPLE,
    ZERO_STATE,
    AdapterTensors,
    SlotState,
    StepInputs,
    mask_row,
)
from firelane.program.cache_codes import CacheCode
from firelane.program.integer_products import IntegerMatrix, integer_product
from firelane.program.sampling_reference import RowSampling, sample_row
from firelane.program.segments import segment_ranges, tree_sum
from firelane.program.state import StateLayer
from firelane.program.values import DType, Rows, Value, Weight, own_rows

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]


@dataclass(frozen=True)
class ReferenceOutputs:
    """Outputs of a step like contract.StepOutputs, with logprobs of every row that is drawn or scored;
    top_ids and top_logprobs: [rows, MAX_LOGPROBS]; hidden: of every row."""

    tokens: I32
    logprobs: F32
    top_ids: I32
    top_logprobs: F32
    hidden: F32


@dataclass
class ReferenceCache:
    """Keys and values by layer: float32 [slots, positions, kv_heads, width of a head], holding values of the
    cache dtype. Values that are part of their keys are a view of those.

    A layer with a code has keys times their scales, and apart from them values without theirs, which are in
    value_scales: float32 [slots, positions, kv_heads].
    """

    keys: dict[int, F32]
    values: dict[int, F32]
    dtypes: dict[int, DType]
    codes: dict[int, CacheCode] = field(default_factory=dict[int, CacheCode])
    value_scales: dict[int, F32] = field(default_factory=dict[int, F32])


class CachedRows(NamedTuple):
    """Positions of one slot: keys, values: [positions, kv_heads, width]; value_scales: [positions,
    kv_heads]."""

    keys: F32
    values: F32
    value_scales: F32


class ReferenceChunk(NamedTuple):
    """Consecutive token rows of one slot, those of a draft apart. state_to: where the state after them goes;
    state_from, state_save: as chunk_from and chunk_save of StepInputs."""

    rows: range
    state_to: int
    state_from: int
    state_save: int


@dataclass(kw_only=True)
class ReferenceStep:
    """The state of a step that an op sees while it runs: the token rows, the weights, the cache, and all
    values made so far.

    token_ids, slots, positions: int64 [tokens]; row_token: int64 [rows]; weights: float32 by name, as the
    Program shapes them. states: by name of the state layer, float32 [states, *shape]. inputs: without them,
    chunks save no state and go on from the live one of their slot. inputs, state and hidden (the input of the
    program's head) are needed by Sample.
    """

    token_ids: I64
    slots: I64
    positions: I64
    row_token: I64
    weights: Mapping[str, F32]
    cache: ReferenceCache
    states: Mapping[str, F32] = field(default_factory=dict[str, F32])
    inputs: StepInputs | None = None
    state: SlotState | None = None
    hidden: Value | None = None
    values: dict[Value, F32] = field(default_factory=dict[Value, F32])
    features: F32 = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """Features told so far: [tokens, features_out]."""
    outputs: ReferenceOutputs | None = None
    exact: bool = False
    """Whether each segment of a product is summed in float64 and rounded once: its bits then do not depend on
    how many rows or outputs are computed beside it. What ranks are compared with."""
    integers: Mapping[str, Sequence[IntegerMatrix]] = field(
        default_factory=dict[str, Sequence[IntegerMatrix]]
    )
    """Matrices, by name of the weight that has them, whose products are those of integers."""
    adapters: Mapping[int, AdapterTensors] = field(default_factory=dict[int, AdapterTensors])
    """By the place that state.adapter has of a slot."""
    mail: Mapping[str, Mapping[int, F32]] = field(default_factory=dict[str, Mapping[int, F32]])
    """Sent rows, by name of what they are for and by rank."""

    def of_rank(self, rank: int, ranks: int) -> ReferenceStep:
        """Step as ops of OWN rows see it: the tokens of one rank; with the same values and cache."""
        mine = own_rows(len(self.token_ids), rank, ranks)
        tokens, slots, positions = (
            a[mine.start : mine.stop] for a in (self.token_ids, self.slots, self.positions)
        )
        return replace(self, token_ids=tokens, slots=slots, positions=positions, inputs=None)

    def read(self, value: Value) -> F32:
        return self.values[value]

    def write(self, value: Value, array: F32) -> None:
        """Round to the value's dtype and keep."""
        rows = len(self.row_token) if value.rows is Rows.OUTPUT else len(self.token_ids)
        assert array.shape == (rows, value.width), f"{value.name}: {array.shape} is not {(rows, value.width)}"
        self.values[value] = rounded(array, value.dtype)

    def tell(self, columns: range, array: F32) -> None:
        """Columns of the features of all token rows."""
        self.features[:, columns.start : columns.stop] = array

    def adapter_places(self, kind: Rows) -> I32:
        """int32 [rows]: the place of the adapter of each row's slot."""
        slots = self.slots if kind is Rows.TOKEN else self.slots[self.row_token]
        return np.zeros(len(slots), np.int32) if self.state is None else self.state.adapter[slots]

    def weight(self, weight: Weight) -> F32:
        return self.weights[weight.name]

    def product(self, x: F32, weight: Weight, segments: Sequence[int] = (), matrix: int = 0) -> F32:
        """x times a transposed matrix of the weight, the inputs in segments of these widths, in one if there
        are none."""
        if weight.name in self.integers:
            return integer_product(x, self.integers[weight.name][matrix], segments)
        numbers = self.weight(weight).reshape(weight.matrices, weight.rows, weight.k)[matrix]
        ranges = segment_ranges(segments or (x.shape[1],))
        parts = [
            self._dot(x[:, r.start : r.stop], numbers[:, r.start : r.stop]) if r else None for r in ranges
        ]
        out = tree_sum(parts)
        assert out is not None
        return out

    def _dot(self, x: F32, weight: F32) -> F32:
        if not self.exact:
            return x @ weight.T
        return (x.astype(np.float64) @ weight.T.astype(np.float64)).astype(np.float32)

    def received(self, name: str, ranks: int) -> list[F32]:
        """The parts that each of so many ranks has sent for `name`."""
        return [self.mail[name][rank] for rank in range(ranks)]

    def rounded(self, array: F32, dtype: DType) -> F32:
        return rounded(array, dtype)

    def write_cache(self, layer: int, keys: F32, values: F32 | None) -> None:
        """keys, values: [tokens, kv_heads, width], to each token's slot and position; None for values that
        are part of their keys."""
        cache, at = self.cache, (self.slots, self.positions)
        code, dtype = cache.codes.get(layer), cache.dtypes[layer]
        if code is not None:
            self._write_codes(code, layer, keys, values)
            return
        cache.keys[layer][at] = rounded(keys, dtype)
        if values is not None:
            cache.values[layer][at] = rounded(values, dtype)

    def _write_codes(self, code: CacheCode, layer: int, keys: F32, values: F32 | None) -> None:
        cache, at = self.cache, (self.slots, self.positions)
        parts = [keys]
        if values is None:
            values, rest = np.split(keys, [cache.values[layer].shape[-1]], axis=-1)
            parts = [values, rest] if rest.shape[-1] else [values]
        quantised = [code.quantise(part) for part in parts]
        scaled = [numbers * scales[..., None] for numbers, scales in quantised]
        cache.keys[layer][at] = np.concatenate(scaled, axis=-1)
        cache.values[layer][at], cache.value_scales[layer][at] = code.quantise(values)

    def read_cache(self, layer: int, slot: int, start: int, stop: int) -> CachedRows:
        """Positions start .. stop - 1."""
        keys, values = (part[layer][slot, start:stop] for part in (self.cache.keys, self.cache.values))
        scales = self.cache.value_scales.get(layer)
        ones = np.ones(keys.shape[:2], np.float32)
        return CachedRows(keys, values, ones if scales is None else scales[slot, start:stop])

    @property
    def chunks(self) -> list[ReferenceChunk]:
        """In the order of the token rows, for ops that keep state."""
        inputs = self.inputs
        if inputs is None:
            return self._chunks_of_slots()
        chunks, first = list[ReferenceChunk](), 0
        for i in range(inputs.num_chunks):
            stop, slot = first + int(inputs.chunk_len[i]), int(inputs.chunk_slot[i])
            draft = range(stop - int(inputs.chunk_drafted[i]), stop)
            state = int(inputs.chunk_from[i]), int(inputs.chunk_save[i])
            chunks.append(ReferenceChunk(range(first, draft.start), slot, *state))
            if draft:
                chunks.append(ReferenceChunk(draft, int(inputs.chunk_spare[i]), slot, NO_SNAPSHOT))
            first = stop
        return chunks

    def _chunks_of_slots(self) -> list[ReferenceChunk]:
        """Runs of rows of one slot."""
        turns = [0, *(np.flatnonzero(np.diff(self.slots)) + 1).tolist(), len(self.slots)]
        chunks = list[ReferenceChunk]()
        for first, last in pairwise(dict.fromkeys(turns)):
            slot = int(self.slots[first])
            start = slot if self.positions[first] else ZERO_STATE
            chunks.append(ReferenceChunk(range(first, last), slot, start, NO_SNAPSHOT))
        return chunks

    def read_state(self, layer: StateLayer, chunk: ReferenceChunk) -> F32:
        """A copy of the state before the chunk's first token."""
        if chunk.state_from == ZERO_STATE:
            return np.zeros(layer.shape, np.float32)
        return self.states[layer.name][chunk.state_from].copy()

    def write_state(self, layer: StateLayer, chunk: ReferenceChunk, state: F32) -> None:
        """The state after the chunk's last token: to where it goes, and to the snapshot if there is one."""
        assert state.shape == layer.shape, f"{layer.name}: {state.shape} is not {layer.shape}"
        self.states[layer.name][chunk.state_to] = state
        if chunk.state_save != NO_SNAPSHOT:
            self.states[layer.name][chunk.state_save] = state

    def sample(self, logits: F32) -> None:
        """Draw or score each output row, unless it is to be embedded; drawn tokens go to the slots'
        tokens."""
        assert self.inputs is not None
        assert self.state is not None
        hidden = self.read(self.hidden) if self.hidden else np.zeros((len(logits), 0), np.float32)
        self.outputs = _sample(logits, hidden, self.inputs, self.state)

    def give_hidden(self, hidden: F32) -> None:
        """hidden: [rows, width], of a program that draws nothing."""
        rows = len(hidden)
        self.outputs = ReferenceOutputs(
            tokens=np.zeros(rows, np.int32),
            logprobs=np.zeros(rows, np.float32),
            top_ids=np.full((rows, MAX_LOGPROBS), -1, np.int32),
            top_logprobs=np.zeros((rows, MAX_LOGPROBS), np.float32),
            hidden=hidden,
        )


def rounded(array: F32, dtype: DType) -> F32:
    """Float32 holding only values of `dtype`: to nearest, ties to even; NaN stays NaN."""
    array = np.ascontiguousarray(array, np.float32)
    if dtype is not DType.BF16:
        return array
    bits = array.view(np.uint32)
    upper = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(array), array, upper.view(np.float32))


def _sample(logits: F32, hidden: F32, inputs: StepInputs, state: SlotState) -> ReferenceOutputs:
    rows = len(logits)
    out = ReferenceOutputs(
        tokens=np.zeros(rows, np.int32),
        logprobs=np.zeros(rows, np.float32),
        top_ids=np.zeros((rows, MAX_LOGPROBS), np.int32),
        top_logprobs=np.zeros((rows, MAX_LOGPROBS), np.float32),
        hidden=hidden,
    )
    for r in np.flatnonzero(inputs.row_kind[:rows] != EMBED).tolist():
        slot, position = int(inputs.row_slot[r]), int(inputs.row_position[r])
        row = RowSampling(
            position=position + 1,
            draws=int(inputs.row_kind[r]) == SAMPLE,
            tokens=state.tokens[slot],
            params=state.sampling[slot],
            bias_ids=state.bias_ids[slot],
            bias_values=state.bias_values[slot],
            stop_ids=state.stop_ids[slot],
            mask=state.masks[mask_row(inputs, r, len(state.tokens))],
        )
        result = sample_row(logits[r], row)
        state.tokens[slot, position + 1] = out.tokens[r] = result.token
        out.logprobs[r] = result.logprob
        count = len(result.top_ids)
        out.top_ids[r, :count], out.top_logprobs[r, :count] = result.top_ids, result.top_logprobs
    return out
