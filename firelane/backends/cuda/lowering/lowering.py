"""Operands of the launches of one bucket: the values, weights and sizes of its step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from torch import Tensor

from firelane.backends.cuda.device.launch import Work
from firelane.backends.cuda.device.linear_config import LinearConfig
from firelane.backends.cuda.kernels.matmul.group_rows import group_rows
from firelane.backends.cuda.kernels.rows.prepare_inputs import prepare_inputs
from firelane.backends.cuda.lowering.buckets import Bucket
from firelane.backends.cuda.lowering.product_plan import ExpertOp, ProductPlan
from firelane.backends.cuda.lowering.step_memory import StepMemory
from firelane.backends.cuda.rank_sum import RankSum
from firelane.backends.cuda.step.split_k import Source, SplitKSum
from firelane.backends.cuda.step.tables import LOGIT_ROWS, ROWS, TOKENS
from firelane.backends.cuda.weights.device_weights import DeviceWeights
from firelane.backends.cuda.weights.matrices import Matrix
from firelane.program.ops import AllReduce, GatedLinear, Linear, RMSNorm
from firelane.program.program import Program
from firelane.program.values import Rows, Value, Weight


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """The launches of one bucket's step. prepare: the first one, by parity; compute: all others."""

    prepare: tuple[Work, ...]
    compute: tuple[Work, ...]

    def __iter__(self) -> Iterator[Work]:
        yield from self.prepare
        yield from self.compute


@dataclass(kw_only=True)
class Lowering:
    """Makes the launches of one bucket, op after op. `split_k`: products whose parts the next op adds up;
    `rank_sums`: sums over ranks that the norm behind adds up. `grouped`: the picks that the rows lie grouped
    by, and in tiles of how many."""

    program: Program
    bucket: Bucket
    memory: StepMemory
    weights: DeviceWeights
    products: ProductPlan
    num_sms: int
    tile_tokens: int
    split_k: dict[Value, SplitKSum] = field(default_factory=dict[Value, SplitKSum])
    rank_sums: dict[Value, RankSum] = field(default_factory=dict[Value, RankSum])
    grouped: tuple[Value, int] | None = None

    @cached_property
    def normed_sums(self) -> frozenset[Value]:
        """Sums over ranks with a norm of whole rows right behind."""
        pairs = pairwise(self.program.ops)
        return frozenset(
            norm.x
            for total, norm in pairs
            if isinstance(total, AllReduce)
            and isinstance(norm, RMSNorm)
            and norm.x == total.out
            and norm.groups == 1
        )

    def prepare(self, parity: int) -> Work:
        """The launch that a step begins with."""
        return prepare_inputs(
            self.memory.tables,
            self.memory.state,
            parity=parity,
            block_size=self.block_size,
            tile_tokens=self.tile_tokens,
            max_chunks=self.bucket.chunks,
            max_rows=self.bucket.rows,
        )

    @property
    def block_size(self) -> int:
        return next(iter(self.memory.pages.layers.values())).block_size

    def at(self, value: Value) -> Tensor:
        return self.memory.values[value]

    def at_or_none(self, value: Value | None) -> Tensor | None:
        """A value, where the op has it."""
        return None if value is None else self.at(value)

    def source(self, value: Value) -> Source:
        """The value, or its parts, which are then added up by whoever asked."""
        return self.split_k.pop(value, None) or self.at(value)

    def x_t(self, x: Value) -> Tensor:
        """Room for x transposed, where a product's config wants it."""
        return self.memory.transposed.view(self.at(x).dtype)

    def rows(self, value: Value) -> int:
        return self.bucket.tokens if value.rows is Rows.TOKEN else self.bucket.rows

    def optional(self, vector: Weight | None) -> Tensor | None:
        """A vector, where the op has it."""
        return None if vector is None else self.weights.vector(vector.name)

    def matrix(self, name: str) -> Matrix:
        return self.weights.matrix(name)

    def config(self, op: Linear | GatedLinear) -> LinearConfig:
        """The config of an op's one product."""
        (product,) = op.products
        return self.products.config(product, self.bucket)

    def experts(self, op: ExpertOp) -> tuple[list[Work], dict[str, Any]]:
        """Launches that an op of experts needs first, and its operands but for x and the output."""
        config, experts, picks = self.products.expert_config(op, self.bucket), op.weight.matrices, op.picks
        works: list[Work] = []
        if self.grouped != (picks, config.row_tile):
            self.grouped = (picks, config.row_tile)
            launch = group_rows(
                self.at(picks),
                self.memory.groups,
                experts=experts,
                first=op.part.first if op.part else 0,
                width=picks.width,
                row_tile=config.row_tile,
                **self.counted(picks),
            )
            works.append(launch)
        return works, {
            "groups": self.memory.groups,
            "experts": experts,
            "picks": picks.width,
            "bias": self.optional(op.bias),
            "shares": self.at_or_none(op.shares),
            "config": config,
            "max_rows": self.rows(picks),
        }

    def counted(self, value: Value, *, is_head: bool = False) -> dict[str, Any]:
        """The source of how many rows of `value` a step has."""
        count = LOGIT_ROWS if is_head else TOKENS if value.rows is Rows.TOKEN else ROWS
        return {"counts": self.memory.tables.counts, "count": count, "max_rows": self.rows(value)}
