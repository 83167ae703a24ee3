"""QueryTile: how many rows of queries a program of attention computes at once, with how many warps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from firelane.backends.cuda.device.shapes import ATTENTION_TILE
from firelane.backends.cuda.kernels.sums import power_of_two
from firelane.program.ops import Attention, HeadShape
from firelane.program.values import DType

LEAST_COLUMNS = 16  # of a product
WIDEST_HEAD = 128  # of which the sums of two states fit a thread's registers at full size
WIDEST_SLICE = 256  # of which they fit at all, and beyond which a full tile of keys does not fit beside q


@dataclass(frozen=True, kw_only=True)
class QueryTile:
    """rows: (token, head of the group) pairs; positions: of the context whose scores are computed at once;
    columns: as wide as values, padded to a power of two; tail: what keys have behind as many columns as
    values have (of latent attention, the values themselves), padded likewise. value_slice: columns of the
    values whose sums a program of a prompt keeps; of a head with more, several programs compute all scores
    each.
    stages: of loading; 5 give room for three tiles of keys and values, as a tile waits for its block's number
    first.

    Decoded tokens and prompts get the same bits as long as a row's scores lie in the same threads in both:
    64 x warps / 4 rows in bfloat16, where a warp group computes 64 rows; else the same tile in both. A test
    compares the compiled layouts.
    """

    rows: int
    positions: int
    columns: int
    tail: int
    value_slice: int
    warps: int
    stages: int

    @classmethod
    def of_decode(cls, op: Attention) -> QueryTile:
        return cls._of(op, rows=64, warps=4)

    @classmethod
    def of_prompts(cls, op: Attention) -> QueryTile:
        return cls._of(op, rows=128, warps=8)

    @classmethod
    def _of(cls, op: Attention, *, rows: int, warps: int) -> QueryTile:
        shape, stages = op.shape, 5
        columns = max(LEAST_COLUMNS, power_of_two(shape.v_dim))
        behind = shape.head_dim - shape.v_dim
        if columns > WIDEST_HEAD:
            rows, warps, stages = 64, 8, 3 if columns <= WIDEST_SLICE else 2
        if op.out.dtype is DType.F32:  # no tensor cores: for tests and small models
            rows, warps, stages = 32, 8, 2
        return cls(
            rows=rows,
            positions=ATTENTION_TILE if columns <= WIDEST_SLICE else ATTENTION_TILE // 2,
            columns=columns,
            tail=max(LEAST_COLUMNS, power_of_two(behind)) if behind else 0,
            value_slice=min(columns, WIDEST_SLICE),
            warps=warps,
            stages=stages,
        )

    def parts_of(self, pairs: int) -> int:
        """Programs that so many pairs of one KV head take."""
        return -(-pairs // self.rows)


def width_arguments(shape: HeadShape, tile: QueryTile) -> dict[str, Any]:
    """The width of heads, as kernels of attention are told it."""
    return {
        "HEAD_DIM": shape.head_dim,
        "VALUE_DIM": shape.v_dim,
        "SHARED": shape.shared,
        "COLUMNS": tile.columns,
        "TAIL": tile.tail,
    }


def split_programs(op: Attention, num_sms: int) -> int:
    """Programs of attend_splits for each KV head and part of it: as many as the device holds at once."""
    tile, shape = QueryTile.of_decode(op), op.shape
    width = tile.columns + tile.tail  # of keys, whose tiles take most of the shared memory
    per_sm = 3 if width <= 64 else 2 if width <= WIDEST_HEAD else 1
    return max(1, per_sm * num_sms // (shape.kv_heads * tile.parts_of(shape.group)))
