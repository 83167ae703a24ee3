"""LinearConfig: how a product is spread over the device. Never what it gives: any config of a matrix gives
the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from firelane.backends.cuda.device.shapes import ROW_BLOCK, round_up, segments

FUSED_ROWS = 512  # up to here a matrix in the coded form is decoded in every product, above once before it
PARTS_ROWS = 128
TRANSPOSE_ROWS = 64
FULL = 120  # programs that leave little of a device idle


@dataclass(frozen=True, kw_only=True)
class LinearConfig:
    """row_tile: tokens of a program; features: rows of the matrix of a program, 64 or 128; k_tile: inputs
    of one turn of its loop. parts: segments are summed by programs of their own, and their reader adds them
    up.
    decode_first: a matrix in the coded form is decoded into a buffer as a whole, then multiplied as a
    plain one. library: the product is a library's; its bits may differ with the rows of a step, all else is
    then of no account. transpose: x is transposed first, for the escapes of many rows.
    """

    row_tile: int
    features: int = 64
    k_tile: int = 128
    warps: int = 4
    stages: int = 4
    parts: bool = False
    decode_first: bool = False
    library: bool = False
    transpose: bool = False

    def __post_init__(self) -> None:
        tiles = (self.row_tile, self.features, self.k_tile)
        assert all(tile & (tile - 1) == 0 for tile in tiles), f"tiles {tiles} are no powers of two"
        assert self.row_tile >= 16, f"{self.row_tile} rows: fewer take another instruction, with other bits"
        assert self.features in (64, 128), f"{self.features} features"


@dataclass(frozen=True, kw_only=True)
class ProductShape:
    """A product as far as its config depends on it: a matrix [rows, k] (gated: gate's and up's rows
    together) and at most max_rows rows of x. experts: how many such matrices there are, of which each row
    meets `picks`; 0 of a plain product."""

    rows: int
    k: int
    gated: bool
    max_rows: int
    is_coded: bool
    experts: int = 0
    picks: int = 0

    @property
    def rows_of_expert(self) -> int:
        """On average, of those that there are."""
        return -(-self.max_rows * self.picks // self.experts)


MeasuredTable = Mapping[ProductShape, LinearConfig]
"""The fastest configs of products that were measured (tuning/)."""


def choose(
    *,
    matrix_rows: int,
    k: int,
    gated: bool,
    max_rows: int,
    is_coded: bool,
    table: MeasuredTable | None,
    gemm: str = "invariant",
) -> LinearConfig:
    """The measured config, if there is one; else one by rule. gemm "library": products of many rows are a
    library's."""
    if gemm == "library" and max_rows > PARTS_ROWS:
        return LinearConfig(row_tile=64, decode_first=is_coded, library=True, transpose=True)
    shape = ProductShape(rows=matrix_rows, k=k, gated=gated, max_rows=max_rows, is_coded=is_coded)
    measured = None if table is None else table.get(shape)
    return measured or by_rule(shape)


def by_rule(shape: ProductShape) -> LinearConfig:
    """For sm_90: 132 multiprocessors of 64 K registers and 227 KB of shared memory.

    Few rows: weights pass by once, and what counts are bytes on their way. 4.3 TB/s at some 0.7 us are 3 MB,
    23 KB a multiprocessor, and twice that hides the ends of loops. So a program keeps some 80 KB of stages,
    64 features wide, and two fit a multiprocessor: programs of segments (128 at least) and of escapes run all
    at once, none waits for a second turn. Many rows: products count. A tile of 128 x 256 reads its operands
    (85 operations a byte) at two thirds of what the cache gives, and its sums are half of the registers; it
    is halved where there would be fewer programs than multiprocessors.

    Escapes meet some fifty inputs of 4096: so many sectors of x for each row of a tile as weights pass by for
    16 rows. With many rows it pays to transpose x first.

    Parts are read and written as float32, several times: worth it only where programs would be too few.
    """
    if shape.experts:
        return _grouped(shape)
    if shape.is_coded and shape.max_rows <= FUSED_ROWS:
        config = _coded_gated(shape) if shape.gated else _coded(shape)
    else:
        config = _plain_gated(shape) if shape.gated else _plain(shape)
    return replace(config, transpose=shape.max_rows > TRANSPOSE_ROWS)


def _grouped(shape: ProductShape) -> LinearConfig:
    """The config of a product with the rows that an expert has on average: so few are in vain, and few
    experts take two tiles. Rows are gathered, and their addresses take registers: 128 rows need two warp
    groups, which coded weights cannot have. Both products of a layer have tiles of as many rows, so that
    they are grouped once."""
    most = 64 if shape.is_coded else PARTS_ROWS
    config = by_rule(replace(shape, max_rows=min(shape.rows_of_expert, most), experts=0, picks=0))
    config = replace(config, parts=False, transpose=False, decode_first=False)
    return replace(config, warps=8) if config.row_tile == PARTS_ROWS else config


def _coded(shape: ProductShape) -> LinearConfig:
    """A stage is 12 KB of weights, and 256 bytes for each row of x. Four warps, one warp group: with two, the
    compiler gives the loop's two products different layouts, and sums move through shared memory each turn.
    """
    rows = _tile_of(shape.max_rows, most=128)
    stages = 4 if _is_long(shape) and rows == 16 else {16: 5, 32: 4}.get(rows, 3)
    parts = shape.max_rows <= PARTS_ROWS
    return LinearConfig(row_tile=rows, stages=stages, parts=parts)


def _coded_gated(shape: ProductShape) -> LinearConfig:
    rows = _tile_of(shape.max_rows, most=128)
    stages = {16: 4}.get(rows, 3)
    return LinearConfig(row_tile=rows, stages=stages)


def _plain(shape: ProductShape) -> LinearConfig:
    """A stage of k_tile inputs is 2 * k_tile bytes for each feature and row."""
    rows = _tile_of(shape.max_rows, most=64)
    if shape.max_rows <= 64:
        stages = 3 if _is_long(shape) else {16: 5, 32: 4, 64: 3}[rows]
        return LinearConfig(row_tile=rows, stages=stages, parts=True)
    if shape.max_rows <= PARTS_ROWS:
        return LinearConfig(row_tile=128, k_tile=64, stages=4, parts=True)
    decode_first = shape.is_coded
    for features, row_tile in ((128, 256), (128, 128)):
        if _programs(shape.rows, features, shape.max_rows, row_tile) >= FULL:
            stages = 3 if row_tile == 256 else 4
            return LinearConfig(
                row_tile=row_tile, features=features, k_tile=64, warps=8, stages=stages,
                decode_first=decode_first,
            )  # fmt: skip
    return LinearConfig(row_tile=128, k_tile=64, stages=4, decode_first=decode_first)


def _plain_gated(shape: ProductShape) -> LinearConfig:
    rows = _tile_of(shape.max_rows, most=256)
    stages = {16: 6, 32: 5, 64: 4}.get(rows, 3)
    warps = 8 if rows == 256 else 4
    return LinearConfig(row_tile=rows, k_tile=64, warps=warps, stages=stages, decode_first=shape.is_coded)


def _is_long(shape: ProductShape) -> bool:
    """Whether programs of few rows come in several turns (a language model's head): then three on a
    multiprocessor hide each other's ends."""
    return _programs(shape.rows, ROW_BLOCK, shape.max_rows, 64) * segments(shape.rows, shape.k) > 3 * FULL


def _tile_of(max_rows: int, *, most: int) -> int:
    """The least power of two that holds all rows, from 16 to `most`."""
    return min(max(16, 1 << (max_rows - 1).bit_length()), most)


def _programs(rows: int, features: int, max_rows: int, row_tile: int) -> int:
    return round_up(rows, ROW_BLOCK) // features * -(-max_rows // row_tile)
