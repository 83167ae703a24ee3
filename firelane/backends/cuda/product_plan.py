"""ProductPlan: for each product and bucket, how it is spread over the device, and the scratch that takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from firelane.backends.cuda.buckets import Bucket
from firelane.backends.cuda.config import LinearConfig, MeasuredTable, choose
from firelane.backends.cuda.kernels import columns
from firelane.backends.cuda.shapes import K_TILE, ROW_BLOCK, round_up, segments
from firelane.backends.cuda.step_memory import ScratchSizes, stride_of
from firelane.program.ops import GatedLinear, Linear, Op, RMSNorm, RopeAndCache, SelectRows
from firelane.program.program import Program
from firelane.program.values import Rows, Value, Weight

Product = Linear | GatedLinear
LIBRARY_ROWS = 2048  # both products of a gated linear op, in float32, before they become one


@dataclass(frozen=True, kw_only=True)
class ProductPlan:
    """is_window: whether a weight is, or may be, in the window form. table: measured choices, if any. gemm:
    as in ExecutorRequest."""

    program: Program
    is_window: Callable[[Weight], bool]
    table: MeasuredTable | None = None
    gemm: str = "invariant"

    def config(self, op: Product, bucket: Bucket) -> LinearConfig:
        rows, k = op.weight.shape
        config = choose(
            matrix_rows=rows,
            k=k,
            gated=isinstance(op, GatedLinear),
            max_rows=self.rows(op.x, bucket),
            is_window=self.is_window(op.weight),
            table=self.table,
            # The head has few rows and the largest matrix: not worth a buffer for all of it.
            gemm="invariant" if op == self.program.head else self.gemm,
        )
        return config if self._may_leave_parts(op) else replace(config, parts=False)

    def scratch(self, buckets: Sequence[Bucket]) -> ScratchSizes:
        """Enough for every bucket."""
        parts = decoded = column_bytes = 0
        for op in self.program.ops:
            if not isinstance(op, Product):
                continue
            for bucket in buckets:
                config = self.config(op, bucket)
                if config.parts:
                    count = segments(*op.weight.shape) + 1
                    parts = max(parts, count * self.rows(op.out, bucket) * stride_of(op.out))
                if config.library and isinstance(op, GatedLinear):
                    parts = max(parts, library_rows(self.rows(op.x, bucket)) * padded_rows(op))
                if config.decode_first:
                    decoded = max(decoded, padded_elements(op))
                if config.columns:
                    size = columns.elements(op.x.width, self.rows(op.x, bucket)) * op.x.dtype.itemsize
                    column_bytes = max(column_bytes, size)
        return ScratchSizes(parts=parts, decoded=decoded, column_bytes=column_bytes)

    @staticmethod
    def rows(value: Value, bucket: Bucket) -> int:
        return bucket.tokens if value.rows is Rows.TOKEN else bucket.rows

    def _may_leave_parts(self, op: Product) -> bool:
        """Whether the op behind it adds up the parts of what it reads."""
        behind = self._behind.get(op.out)
        adds_up = isinstance(behind, RMSNorm | RopeAndCache | SelectRows)
        return isinstance(op, Linear) and adds_up and op.out in behind.inputs

    @cached_property
    def _behind(self) -> dict[Value, Op]:
        """The op behind the one that makes a value."""
        pairs = pairwise(self.program.ops)
        return {value: behind for op, behind in pairs for value in op.outputs}

    @cached_property
    def readers(self) -> dict[Value, list[Op]]:
        """Of each value, in order."""
        found: dict[Value, list[Op]] = {}
        for op in self.program.ops:
            for value in op.inputs:
                found.setdefault(value, []).append(op)
        return found


def library_rows(max_rows: int) -> int:
    """Rows of a gated product that the library computes at a time: whole tiles of what comes after it."""
    return min(round_up(max_rows, ROW_BLOCK), LIBRARY_ROWS)


def padded_rows(op: Product) -> int:
    """Of the op's matrix on the device."""
    halves = 2 if isinstance(op, GatedLinear) else 1
    return halves * round_up(op.weight.shape[0] // halves, ROW_BLOCK)


def padded_elements(op: Product) -> int:
    """Of the op's matrix on the device."""
    return padded_rows(op) * round_up(op.weight.shape[1], K_TILE)
