"""ProductPlan: for each product and bucket, how it is spread over the device, and the scratch that takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise

from firelane.backends.cuda.device.linear_config import (
    LinearConfig,
    MeasuredTable,
    ProductShape,
    by_rule,
    choose,
)
from firelane.backends.cuda.device.shapes import K_TILE, ROW_BLOCK, round_up, segments
from firelane.backends.cuda.kernels.matmul import transpose
from firelane.backends.cuda.kernels.matmul.tiling import fitted
from firelane.backends.cuda.lowering.buckets import Bucket
from firelane.backends.cuda.lowering.step_memory import ScratchSizes, stride_of
from firelane.backends.cuda.step.kv_pages import DTYPES
from firelane.backends.cuda.step.row_groups import most_tiles
from firelane.backends.cuda.step.split_k import added_up
from firelane.backends.cuda.step.sum_order import is_segmented
from firelane.backends.cuda.weights.placement import padded_rows
from firelane.program.ops import ExpertGatedLinear, ExpertLinear, HeadLinear, Linear, Op, Product
from firelane.program.program import Program
from firelane.program.values import Rows, Value, Weight

ExpertOp = ExpertGatedLinear | ExpertLinear
LIBRARY_ROWS = 2048  # both products of a gated linear op, in float32, before they become one


@dataclass(frozen=True, kw_only=True)
class ProductPlan:
    """is_coded: whether a weight is, or may be, in the coded form. table: measured choices, if any. gemm:
    as in ExecutorConfig."""

    program: Program
    is_coded: Callable[[Weight], bool]
    table: MeasuredTable | None = None
    gemm: str = "invariant"

    def config(self, product: Product, bucket: Bucket) -> LinearConfig:
        weight, head = product.weight, self.program.head
        config = choose(
            matrix_rows=weight.rows,
            k=weight.k,
            gated=product.layout.is_gated,
            max_rows=self.rows(product.x, bucket),
            is_coded=self.is_coded(weight),
            table=self.table,
            # The head has few rows and the largest matrix: not worth a buffer for all of it.
            gemm="invariant" if head is not None and product in head.products else self.gemm,
        )
        splits = product.out in self.may_be_parts or product.out in self.trees
        return config if splits else replace(config, parts=False)

    def run_count(self, product: Product) -> int:
        """Runs of inputs that are summed apart: of a program that ranks share, the rows of a matrix must not
        matter, for ranks have fewer."""
        if product.out in self.trees:
            return len(self.trees[product.out])
        return segments(1 if self.is_segmented else product.weight.rows, product.weight.k)

    def expert_config(self, op: ExpertOp | HeadLinear, bucket: Bucket) -> LinearConfig:
        """Fitting the op's matrices as they are. Each row meets all heads' matrices."""
        weight, is_coded = op.weight, self.is_coded(op.weight)
        shape = grouped_shape(op, self.rows(op.x, bucket), is_coded=is_coded)
        measured = None if self.table is None else self.table.get(shape)
        padded = padded_rows(weight) // (weight.matrices * (1 + shape.gated))
        return fitted(
            measured or by_rule(shape), is_coded=is_coded, dtype=DTYPES[weight.dtype], padded_rows=padded
        )

    def scratch(self, buckets: Sequence[Bucket]) -> ScratchSizes:
        """Enough for every bucket."""
        parts = decoded = transposed_bytes = 0
        experts = [op for op in self.program.ops if isinstance(op, ExpertOp)]
        for product in self.program.products:
            if product.layout.by_expert:
                continue
            x, weight, out = product.x, product.weight, product.out
            for bucket in buckets:
                config = self.config(product, bucket)
                if config.parts:
                    count = self.run_count(product) + (out not in self.trees)
                    parts = max(parts, count * self.rows(out, bucket) * stride_of(out))
                elif out in self.trees:
                    waiting = len(self.trees[out]).bit_length() - 1
                    parts = max(parts, waiting * self.rows(out, bucket) * stride_of(out))
                if config.library and product.layout.is_gated:
                    parts = max(parts, library_rows(self.rows(x, bucket)) * padded_rows(weight))
                if config.decode_first:
                    decoded = max(decoded, padded_rows(weight) * round_up(weight.k, K_TILE))
                if config.transpose:
                    size = transpose.elements(x.width, self.rows(x, bucket)) * x.dtype.itemsize
                    transposed_bytes = max(transposed_bytes, size)
        sizes = ScratchSizes(parts=parts, decoded=decoded, transposed_bytes=transposed_bytes)
        return reduce(_largest, (self._of_experts(op, b) for op in experts for b in buckets), sizes)

    def _of_experts(self, op: ExpertOp, bucket: Bucket) -> ScratchSizes:
        rows, picks = self.rows(op.x, bucket), op.picks.width
        row_tile = self.expert_config(op, bucket).row_tile
        return ScratchSizes(
            parts=picks * rows * stride_of(op.out) if isinstance(op, ExpertLinear) else 0,
            entries=rows * picks,
            row_tiles=most_tiles(rows=rows, picks=picks, experts=op.weight.matrices, row_tile=row_tile),
        )

    @staticmethod
    def rows(value: Value, bucket: Bucket) -> int:
        return bucket.tokens if value.rows is Rows.TOKEN else bucket.rows

    @cached_property
    def may_be_parts(self) -> frozenset[Value]:
        """Values of products that the op behind adds up, and does not read otherwise."""
        return frozenset(
            op.out
            for op, behind in pairwise(self.program.ops)
            if isinstance(op, ExpertLinear) or (isinstance(op, Linear) and not op.softcap)
            if not op.segments
            if added_up(behind) == op.out and behind.inputs.count(op.out) == 1
        )

    @cached_property
    def trees(self) -> dict[Value, tuple[int, ...]]:
        """By product whose segments are added as a tree, their widths."""
        return {op.out: op.segments for op in self.program.ops if isinstance(op, Linear) and op.segments}

    @cached_property
    def is_segmented(self) -> bool:
        return is_segmented(self.program)

    @cached_property
    def readers(self) -> dict[Value, list[Op]]:
        """Ops that read each value, in order."""
        found: dict[Value, list[Op]] = {}
        for op in self.program.ops:
            for value in op.inputs:
                found.setdefault(value, []).append(op)
        return found


def grouped_shape(op: ExpertOp | HeadLinear, max_rows: int, *, is_coded: bool) -> ProductShape:
    weight = op.weight
    return ProductShape(
        rows=weight.rows,
        k=weight.k,
        gated=weight.layout.is_gated,
        max_rows=max_rows,
        is_coded=is_coded,
        experts=weight.matrices,
        picks=weight.matrices if isinstance(op, HeadLinear) else op.picks.width,
    )


def _largest(a: ScratchSizes, b: ScratchSizes) -> ScratchSizes:
    """The larger one of each size."""
    return ScratchSizes(**{name: max(size, getattr(b, name)) for name, size in vars(a).items()})


def library_rows(max_rows: int) -> int:
    """Rows of a gated product that the library computes at a time: whole tiles of what comes after it."""
    return min(round_up(max_rows, ROW_BLOCK), LIBRARY_ROWS)
