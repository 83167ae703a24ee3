"""GroupedProblem: a product with experts' matrices, random ones, and rows whose picks are equally likely, but
not those of the run before, which would leave its matrices in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from firelane.backends.cuda.device.launch import Work
from firelane.backends.cuda.device.linear_config import LinearConfig, ProductShape
from firelane.backends.cuda.device.shapes import ROW_BLOCK, round_up
from firelane.backends.cuda.kernels.matmul.experts import expert_gated, expert_linear
from firelane.backends.cuda.kernels.matmul.group_rows import group_rows
from firelane.backends.cuda.kernels.rows.cast import cast
from firelane.backends.cuda.step.row_groups import TILE_COLUMNS, RowGroups, most_tiles
from firelane.backends.cuda.step.split_k import SplitKSum
from firelane.backends.cuda.step.tables import NUM_COUNTS, TOKENS
from firelane.backends.cuda.weights.matrices import Matrix
from firelane.program.ops import SILU

from .problem import LEAST_RUNS, Problem


@dataclass(frozen=True, kw_only=True)
class GroupedProblem:
    """shape: of the product, experts and picks included. device: as Problem's."""

    shape: ProductShape
    device: torch.device

    def runs(self, config: LinearConfig) -> Sequence[Sequence[Work]]:
        """The grouping of the rows, the product, and what adds its parts up."""
        return [self._works(picks, config) for picks in self._picks]

    def _works(self, picks: Tensor, config: LinearConfig) -> list[Work]:
        shape, groups = self.shape, self._groups(config)
        counted: dict[str, Any] = {"counts": self._counts, "count": TOKENS, "max_rows": shape.max_rows}
        grouped = group_rows(
            picks, groups, experts=shape.experts, width=shape.picks, row_tile=config.row_tile, **counted
        )
        operands: dict[str, Any] = {
            "groups": groups,
            "experts": shape.experts,
            "picks": shape.picks,
            "bias": None,
            "shares": None,
            "config": config,
            "max_rows": shape.max_rows,
        }
        if shape.gated:
            return [grouped, expert_gated(self._matrix, self._x, self._out, gate=SILU, **operands)]
        product = expert_linear(self._matrix, self._x, self._parts, **operands)
        total = SplitKSum(parts=self._parts, width=shape.rows, bias=None, residual=None, out=None)
        return [grouped, product, cast(total, self._sum, width=shape.rows, **counted)]

    @cached_property
    def _matrix(self) -> Matrix:
        """All experts' matrices, each padded."""
        halves = 1 + self.shape.gated
        padded = self.shape.experts * halves * round_up(self.shape.rows // halves, ROW_BLOCK)
        whole = replace(self.shape, rows=padded, experts=0, picks=0)
        matrix = Problem(shape=whole, device=self.device).matrix()
        return replace(matrix, rows=self.shape.experts * self.shape.rows)

    @cached_property
    def _picks(self) -> list[Tensor]:
        return [self._random_picks() for _ in range(LEAST_RUNS)]

    def _random_picks(self) -> Tensor:
        shape = self.shape
        order = torch.rand(shape.max_rows, shape.experts, device=self.device).argsort(dim=1)
        return order[:, : shape.picks].sort(dim=1).values.to(torch.int32).contiguous()

    def _groups(self, config: LinearConfig) -> RowGroups:
        rows, picks = self.shape.max_rows, self.shape.picks
        tiles = most_tiles(rows=rows, picks=picks, experts=self.shape.experts, row_tile=config.row_tile)
        return RowGroups(
            order=self._integers(rows * picks),
            tiles=self._integers(tiles, TILE_COLUMNS),
            count=self._integers(1),
        )

    def _integers(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=self.device)

    @cached_property
    def _counts(self) -> Tensor:
        return torch.full((NUM_COUNTS,), self.shape.max_rows, dtype=torch.int32, device=self.device)

    @cached_property
    def _x(self) -> Tensor:
        """A row, or a slot beside the other."""
        width = self.shape.k * (1 if self.shape.gated else self.shape.picks)
        size = (self.shape.max_rows, round_up(width, 64))
        return torch.randn(size, dtype=torch.bfloat16, device=self.device)

    @cached_property
    def _out(self) -> Tensor:
        size = (self.shape.max_rows, round_up(self.shape.picks * self.shape.rows // 2, 64))
        return torch.empty(size, dtype=torch.bfloat16, device=self.device)

    @cached_property
    def _parts(self) -> Tensor:
        return torch.empty((self.shape.picks, *self._sum.shape), dtype=torch.float32, device=self.device)

    @cached_property
    def _sum(self) -> Tensor:
        size = (self.shape.max_rows, round_up(self.shape.rows, 64))
        return torch.empty(size, dtype=torch.float32, device=self.device)


def problem_of(shape: ProductShape, device: torch.device) -> Problem | GroupedProblem:
    return (GroupedProblem if shape.experts else Problem)(shape=shape, device=device)
