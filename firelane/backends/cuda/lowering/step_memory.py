"""StepMemory: every buffer that a step reads or writes besides the weights, placed before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from firelane.backends.cuda.device.device import Device
from firelane.backends.cuda.device.pinned_state import PinnedState
from firelane.backends.cuda.device.shapes import STRIDE_ELEMENTS, round_up
from firelane.backends.cuda.exchange import RankExchange
from firelane.backends.cuda.kernels.attention.attention_tiles import tile_tokens
from firelane.backends.cuda.kernels.sampling.sample import SampleOutputs, SampleScratch
from firelane.backends.cuda.stage_rows import StageRows
from firelane.backends.cuda.step.feature_rows import FeatureRows
from firelane.backends.cuda.step.kv_pages import DTYPES, KvPages
from firelane.backends.cuda.step.row_groups import RowGroups
from firelane.backends.cuda.step.state_pool import StatePool
from firelane.backends.cuda.step.tables import MAX_IN_FLIGHT, StepTables
from firelane.contract import SlotState, StepLimits
from firelane.program.liveness import ArenaPlacement, place
from firelane.program.ops import Linear, Rotary, Temperature
from firelane.program.program import Program
from firelane.program.values import Rows, Value


@dataclass(frozen=True, kw_only=True)
class ScratchSizes:
    """In elements. parts: float32, of products whose segments, or experts, are summed apart; decoded: bf16,
    of the largest matrix that is decoded as a whole; transposed_bytes: of the rows of a product, transposed;
    entries, row_tiles: of RowGroups."""

    parts: int = 0
    decoded: int = 0
    transposed_bytes: int = 0
    entries: int = 0
    row_tiles: int = 0


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Figures that the memory of a step depends on, and how many bytes of the device it takes."""

    program: Program
    limits: StepLimits
    scratch: ScratchSizes

    @cached_property
    def max_rows(self) -> dict[Rows, int]:
        return {Rows.TOKEN: self.limits.max_num_batched_tokens, Rows.OUTPUT: self.limits.max_output_rows}

    @property
    def heads(self) -> tuple[int, int]:
        """The most heads of an attention layer, and the widest values, for scratch."""
        layers = [c.shape for c in self.program.cache_layers]
        return max(s.heads for s in layers), max(s.v_dim for s in layers)

    @property
    def tile_tokens(self) -> int:
        """One number for all layers: the tables of tiles are made once a step."""
        return min(tile_tokens(c.shape.group) for c in self.program.cache_layers)


def stride_of(value: Value) -> int:
    """Elements from one row to the next."""
    return round_up(value.width, STRIDE_ELEMENTS)


def row_bytes(value: Value) -> int:
    return stride_of(value) * value.dtype.itemsize


def placement_of(sizes: Sizes) -> ArenaPlacement:
    """Places of values in their arena. A split-K product is added up by the op behind it, which reads the
    product's residual: so every value stays for one op longer."""
    return place(sizes.program, row_bytes=row_bytes, max_rows=sizes.max_rows, extra_ops=1)


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """values: by Value, [max rows, stride]. bounds: by widths of segments, int32, where each begins and the
    last one ends. exchange: with other ranks of the stage; stages: rows from and for others. parts, decoded,
    transposed: flat scratch, see ScratchSizes. partial, stats: of attention's KV splits. hidden: pinned
    float32 [MAX_IN_FLIGHT, max_output_rows, hidden_width]."""

    tables: StepTables
    state: PinnedState
    values: Mapping[Value, Tensor]
    pages: KvPages
    states: StatePool
    by_position: Mapping[Rotary | Temperature, Tensor]
    bounds: Mapping[tuple[int, ...], Tensor]
    exchange: RankExchange
    stages: StageRows
    parts: Tensor
    decoded: Tensor
    transposed: Tensor
    groups: RowGroups
    partial: Tensor
    stats: Tensor
    sampling: SampleScratch
    outputs: SampleOutputs
    hidden: Tensor
    features: FeatureRows

    @property
    def kv_bytes(self) -> int:
        """Memory of sequences: pages and recurrent states."""
        return self.pages.pool.nbytes + self.states.pool.nbytes

    @property
    def transient(self) -> tuple[Tensor, ...]:
        """All that is large and means nothing between steps without sequences."""
        scratch = self.parts, self.decoded, self.transposed, self.partial, self.stats
        return self.pages.pool, self.states.pool, *self.values.values(), *scratch

    @classmethod
    def allocate(cls, sizes: Sizes, device: Device, state: SlotState | None = None) -> StepMemory:
        """state: of the slots, where it lies in memory that others see, too."""
        program, limits = sizes.program, sizes.limits
        tables = StepTables.allocate(limits, tile_tokens=sizes.tile_tokens, device=device)
        (heads, value_dim), rows = sizes.heads, limits.max_output_rows
        kv_splits = tables.max_kv_splits
        exchange = RankExchange.allocate(program, sizes.max_rows, device)
        return cls(
            tables=tables,
            state=PinnedState.over(state, device)
            if state
            else PinnedState.allocate(limits, program.vocab_size, device),
            values=_values(sizes, device) | exchange.values,
            bounds=_bounds(program, device),
            exchange=exchange,
            stages=StageRows.allocate(program, sizes.max_rows, device),
            pages=KvPages.allocate(program, limits, device),
            states=StatePool.allocate(program, limits, device),
            by_position=_position_tables(program, limits, device),
            parts=device.empty(sizes.scratch.parts, dtype=torch.float32),
            decoded=device.empty(sizes.scratch.decoded, dtype=torch.bfloat16),
            transposed=device.empty(sizes.scratch.transposed_bytes, dtype=torch.uint8),
            groups=RowGroups.allocate(sizes.scratch.entries, sizes.scratch.row_tiles, device),
            partial=device.empty(kv_splits, heads, value_dim, dtype=torch.float32),
            stats=device.empty(kv_splits, heads, 2, dtype=torch.float32),
            sampling=SampleScratch.allocate(program.vocab_size, rows, device),
            outputs=SampleOutputs.allocate(rows, device),
            hidden=device.pinned(MAX_IN_FLIGHT, rows, program.hidden_width, dtype=torch.float32),
            features=FeatureRows.allocate(program, limits, device),
        )


def _values(sizes: Sizes, device: Device) -> dict[Value, Tensor]:
    placement = placement_of(sizes)
    arena = device.empty(placement.nbytes, dtype=torch.uint8)
    views: dict[Value, Tensor] = {}
    for value, start in placement.offsets.items():
        rows, nbytes = sizes.max_rows[value.rows], sizes.max_rows[value.rows] * row_bytes(value)
        views[value] = arena[start : start + nbytes].view(DTYPES[value.dtype]).view(rows, stride_of(value))
    return views


def _bounds(program: Program, device: Device) -> dict[tuple[int, ...], Tensor]:
    found: dict[tuple[int, ...], Tensor] = {}
    for op in program.ops:
        if isinstance(op, Linear) and op.segments and op.segments not in found:
            host = np.cumsum([0, *op.segments], dtype=np.int32)
            found[op.segments] = device.empty(len(host))
            found[op.segments].copy_(torch.from_numpy(host))
    return found


def _position_tables(
    program: Program, limits: StepLimits, device: Device
) -> dict[Rotary | Temperature, Tensor]:
    tables: dict[Rotary | Temperature, Tensor] = {}
    for table in program.position_tables:
        host = table.table(limits.max_model_len)
        tables[table] = device.empty(*host.shape, dtype=torch.float32)
        tables[table].copy_(torch.from_numpy(host))
    return tables
