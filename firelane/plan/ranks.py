"""Ranks: which ops of a program a stage runs, in which shares, and the memory that each rank needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from firelane.contract.limits import longest_sequence, sequence_pages
from firelane.parallel.shares import Shares, kv_share, spreads
from firelane.plan.devices import MIB, DeviceSpec
from firelane.plan.layout import ParallelLayout
from firelane.plan.model import PlannedModel
from firelane.program.cache import CacheGroup, CacheLayer, group_layers
from firelane.program.ops import ExpertLinear, Op
from firelane.program.program import Program, cache_layer
from firelane.program.values import Rows, Value, Weight

ROW_BYTES = 128
"""Rows of values are padded to whole multiples of so many bytes."""
SLOT_BYTES = 32 << 10
"""Bytes that an engine keeps of a running sequence beside tokens, masks and tables: biases and stop
tokens."""


@dataclass(frozen=True, kw_only=True)
class PlanSizes:
    """Limits of a step, as `firelane serve` takes them."""

    max_num_seqs: int
    step_tokens: int
    block_size: int
    max_model_len: int

    @property
    def output_rows(self) -> int:
        """Rows of output of a step, as contract.resolve_limits has them."""
        return min(self.max_num_seqs + 32, self.step_tokens)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one rank: what it takes, and what is left of the device; left < 0: it does not fit."""

    weights: int
    activations: int
    workspace: int
    communication: int
    runtime: int
    left: int

    @property
    def taken(self) -> int:
        return self.weights + self.activations + self.workspace + self.communication + self.runtime


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The ops that the ranks of one pipeline stage run, all in the same shares."""

    model: PlannedModel
    layout: ParallelLayout
    shares: Shares
    run: range

    @property
    def program(self) -> Program:
        return self.model.program

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        return self.program.ops[self.run.start : self.run.stop]

    @cached_property
    def weight_shares(self) -> Mapping[Weight, float]:
        """The share of each weight that a rank holds, each weight once."""
        return {weight: self.shares.op(op).weights for op in self.ops for weight in op.weights}

    @cached_property
    def weights_bytes(self) -> int:
        """Bytes of the weights of a rank."""
        return int(sum(self.model.form.nbytes(w) * share for w, share in self.weight_shares.items()))

    @cached_property
    def cache_groups(self) -> tuple[CacheGroup, ...]:
        """Cache groups of the layers of this stage, as a rank keeps them."""
        mine = {layer.layer for op in self.ops if (layer := cache_layer(op)) is not None}
        return group_layers([self._cut(c) for c in self.program.cache_layers if c.layer in mine])

    def _cut(self, layer: CacheLayer) -> CacheLayer:
        shape = layer.shape
        kv_heads = max(1, round(shape.kv_heads * kv_share(shape, self.layout.tp)))
        return replace(layer, shape=replace(shape, heads=kv_heads, kv_heads=kv_heads))

    @property
    def page_token_bytes(self) -> int:
        """Bytes of one token in one cache group."""
        return self.cache_groups[0].bytes_per_token if self.cache_groups else 0

    @cached_property
    def state_bytes(self) -> float:
        """Bytes of the recurrent state of one sequence that a rank keeps."""
        return sum(self.shares.op(op).kept * state.nbytes for op in self.ops for state in op.states)

    def memory(self, device: DeviceSpec, sizes: PlanSizes, kept_back: int) -> Memory:
        """kept_back: bytes of the device for others."""
        kernels, ranks = device.kernels, self.layout.tp * self.layout.pp * max(1, self.layout.ep)
        taken = Memory(
            weights=self.weights_bytes,
            activations=int(self.activation_bytes(sizes, late=kernels.on_gpu)),
            workspace=int(self.workspace_bytes(device, sizes)),
            communication=int(kernels.ranks_mib * MIB) if ranks > 1 else 0,
            runtime=int((kernels.runtime_mib + kernels.reserve_mib) * MIB),
            left=0,
        )
        return replace(taken, left=device.memory_bytes - kept_back - taken.taken)

    def activation_bytes(self, sizes: PlanSizes, *, late: bool) -> float:
        """The most that values of a rank take at one op of the largest step. They are placed once for all
        ops, which takes little more. late: an op's inputs stay for the one behind it, as on a GPU."""
        rows = {Rows.TOKEN: sizes.step_tokens, Rows.OUTPUT: sizes.output_rows}
        live = self.model.live

        def nbytes(value: Value) -> float:
            row = value.width * value.dtype.itemsize * self.shares.value(value)
            return rows[value.rows] * -(-row // ROW_BYTES) * ROW_BYTES

        ops = self.program.ops

        def alive(i: int) -> set[Value]:
            before = ops[i - 1].inputs if late and i > self.run.start else ()
            return {*live[i], *ops[i].outputs, *before}

        return max(sum(map(nbytes, alive(i))) for i in self.run)

    def workspace_bytes(self, device: DeviceSpec, sizes: PlanSizes) -> float:
        """Tables by position, state of the running sequences, and scratch of the kernels."""
        tables = 4 * sizes.max_model_len * sum(table_width(self.program))
        slots = sizes.max_num_seqs * self.slot_bytes(sizes)
        scratch = device.cores * (2 << 20)
        if device.kernels.on_gpu:
            slots, scratch = 0, self._parts_bytes(sizes)
        return tables + slots + scratch

    def slot_bytes(self, sizes: PlanSizes) -> float:
        blocks = -(-sizes.max_model_len // sizes.block_size)
        tables = 4 * max(1, len(self.program.spans)) * blocks
        return 4 * (sizes.max_model_len + 1) + tables + self.program.vocab_size / 8 + SLOT_BYTES

    def _parts_bytes(self, sizes: PlanSizes) -> float:
        """On a GPU each slot of a row is summed apart."""
        parts = [op.picks.width * op.out.width for op in self.ops if isinstance(op, ExpertLinear)]
        return 4.0 * sizes.step_tokens * max(parts, default=0)


def table_width(program: Program) -> list[int]:
    """Numbers a position of each table that a backend keeps."""
    return [int(table.table(1).size) for table in program.position_tables]


@dataclass(frozen=True, kw_only=True)
class Room:
    """Tokens that the KV cache of a layout has room for: of the longest sequence by itself, and of sequences
    of `context` tokens each, so many of them."""

    one: int
    many: int
    sequences: int
    context: int


def room(stages: list[Stage], budgets: list[float], sizes: PlanSizes, context: int) -> Room:
    """budgets: bytes for pages and states, of a rank of each stage."""
    found = [_stage_room(s, b, sizes, context) for s, b in zip(stages, budgets, strict=True)]
    dp = stages[0].layout.dp
    sequences = dp * min(sequences for _, sequences in found)
    one = min(one for one, _ in found)
    return Room(one=one, many=sequences * context, sequences=sequences, context=context)


def _stage_room(stage: Stage, budget: float, sizes: PlanSizes, context: int) -> tuple[int, int]:
    """The longest sequence, and how many of `context` tokens."""
    page = stage.page_token_bytes * sizes.block_size
    spans = [group.span for group in stage.cache_groups]
    if not spans:
        return stage.program.max_model_len, int(budget // max(stage.state_bytes, 1))
    chunk, block = sizes.step_tokens, sizes.block_size
    pages = int(max(0.0, budget - stage.state_bytes) // page)
    one = longest_sequence(spans, pages, chunk, block, at_most=stage.program.max_model_len)
    each = sequence_pages(spans, context, chunk, block) * page + stage.state_bytes
    return one, int(max(0.0, budget) // each)


def stage_weights(stages: list[Stage], layout: ParallelLayout) -> int:
    """Bytes of the weights of all ranks together."""
    return sum(stage.weights_bytes for stage in stages) * layout.tp * layout.dp


def runs_on_all(op: Op, layout: ParallelLayout) -> bool:
    """Whether an op is computed for the sequences of all groups at once: of experts that they share."""
    return layout.ep > layout.tp and spreads(op, layout.ep)
