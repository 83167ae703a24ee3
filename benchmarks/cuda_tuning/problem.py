"""Problem: a product with random operands, enough copies of its matrix that none is still in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from firelane.backends.cuda.device.launch import Work
from firelane.backends.cuda.device.linear_config import LinearConfig, ProductShape
from firelane.backends.cuda.device.shapes import K_TILE, ROW_BLOCK, round_up, segments
from firelane.backends.cuda.kernels.matmul import transpose
from firelane.backends.cuda.kernels.matmul.gated import gated_linear
from firelane.backends.cuda.kernels.matmul.linear import linear
from firelane.backends.cuda.kernels.matmul.linear_parts import linear_parts
from firelane.backends.cuda.kernels.rows.cast import cast
from firelane.backends.cuda.step.split_k import SplitKSum
from firelane.backends.cuda.step.tables import NUM_COUNTS, TOKENS
from firelane.backends.cuda.weights.matrices import ROW_SHIFT, CodedMatrix, Escapes, Matrix, PlainMatrix

PASSED_BYTES = 256 << 20  # several times what a cache keeps
LEAST_RUNS = 8
ESCAPES = 40  # of a block: about as many as normal weights have


@dataclass(frozen=True, kw_only=True)
class Problem:
    """shape: of the product; all of its rows are counted as there. device: where, "meta" for nowhere."""

    shape: ProductShape
    device: torch.device

    def runs(self, config: LinearConfig) -> Sequence[Sequence[Work]]:
        """The product of each copy, with what reads it: so parts cost their reader here, too."""
        return [self._works(matrix, config) for matrix in self._matrices]

    def _works(self, matrix: Matrix, config: LinearConfig) -> list[Work]:
        counted: dict[str, Any] = {"counts": self._counts, "count": TOKENS, "max_rows": self.shape.max_rows}
        counted["x_t"] = self._transposed if config.transpose else None
        scratch = self._scratch if config.decode_first else None
        if self.shape.gated:
            out = self._out.view(torch.bfloat16)
            return gated_linear(
                matrix, self._x, out, bias=None, config=config, scratch=scratch, **counted
            )  # fmt: skip
        if config.parts:
            works = linear_parts(matrix, self._x, self._parts, config=config, **counted)
            return [*works, self._reader(self._parts)]
        works = linear(
            matrix, self._x, self._out, bias=None, residual=None, config=config, scratch=scratch, **counted
        )
        return [*works, self._reader(self._out[None])]

    def _reader(self, parts: Tensor) -> Work:
        split_k = SplitKSum(parts=parts, width=self.shape.rows, bias=None, residual=None, out=None)
        return cast(
            split_k,
            self._sum,
            width=self.shape.rows,
            counts=self._counts,
            count=TOKENS,
            max_rows=self.shape.max_rows,
        )

    @cached_property
    def _matrices(self) -> list[Matrix]:
        first = self.matrix()
        copies = max(1, -(-PASSED_BYTES // first.nbytes))
        distinct = [first, *(self.matrix() for _ in range(copies - 1))]
        return [distinct[i % copies] for i in range(max(copies, LEAST_RUNS))]

    def matrix(self) -> Matrix:
        """A random one."""
        shape, rows = self.shape, self._padded_rows
        k = round_up(shape.k, K_TILE)
        if not shape.is_coded:
            data = torch.randn(rows, k, dtype=torch.bfloat16, device=self.device)
            return PlainMatrix(data=data, rows=shape.rows, k=shape.k, escapes=self._escapes(rows))
        return CodedMatrix(
            low=torch.randint(256, (rows, k), dtype=torch.uint8, device=self.device),
            codes=torch.randint(256, (rows, k // 2), dtype=torch.uint8, device=self.device),
            bases=torch.full((rows // ROW_BLOCK,), 112, dtype=torch.uint8, device=self.device),
            rows=shape.rows,
            k=shape.k,
            escapes=self._escapes(rows),
        )

    def _escapes(self, rows: int) -> Escapes:
        """In each row block the same number of places, by row."""
        blocks = rows // ROW_BLOCK
        starts = torch.arange(blocks + 1, dtype=torch.int32, device=self.device) * ESCAPES
        row = torch.arange(ESCAPES, device=self.device) * ROW_BLOCK // ESCAPES
        where = torch.randint(self.shape.k, (blocks, ESCAPES), device=self.device) + (row << ROW_SHIFT)
        values = torch.randn(blocks * ESCAPES, dtype=torch.bfloat16, device=self.device)
        return Escapes(starts=starts, where=where.to(torch.int32).view(-1), values=values)

    @property
    def _padded_rows(self) -> int:
        halves = 1 + self.shape.gated
        return halves * round_up(self.shape.rows // halves, ROW_BLOCK)

    @cached_property
    def _counts(self) -> Tensor:
        return torch.full((NUM_COUNTS,), self.shape.max_rows, dtype=torch.int32, device=self.device)

    @cached_property
    def _x(self) -> Tensor:
        size = (self.shape.max_rows, round_up(self.shape.k, 64))
        return torch.randn(size, dtype=torch.bfloat16, device=self.device)

    @cached_property
    def _out(self) -> Tensor:
        size = (self.shape.max_rows, round_up(self.shape.rows, 64))
        return torch.empty(size, dtype=torch.float32, device=self.device)

    @cached_property
    def _sum(self) -> Tensor:
        return torch.empty_like(self._out)

    @cached_property
    def _parts(self) -> Tensor:
        count = segments(self.shape.rows, self.shape.k) + 1
        return torch.empty((count, *self._out.shape), dtype=torch.float32, device=self.device)

    @cached_property
    def _transposed(self) -> Tensor:
        size = transpose.elements(self.shape.k, self.shape.max_rows)
        return torch.empty(size, dtype=torch.bfloat16, device=self.device)

    @cached_property
    def _scratch(self) -> Tensor:
        size = self._padded_rows * round_up(self.shape.k, K_TILE)
        return torch.empty(size, dtype=torch.bfloat16, device=self.device)
