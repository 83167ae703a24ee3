"""Which config a product gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.backends.cuda.device.linear_config import (
    FUSED_ROWS,
    LinearConfig,
    ProductShape,
    by_rule,
    choose,
)

SHAPES = st.builds(
    ProductShape,
    rows=st.integers(1, 300_000),
    k=st.integers(1, 30_000),
    gated=st.booleans(),
    max_rows=st.integers(1, 20_000),
    is_coded=st.booleans(),
)
SHARED_BYTES = 232_448


def chosen(table: dict[ProductShape, LinearConfig] | None, **changes: object) -> LinearConfig:
    settings = {"matrix_rows": 4096, "k": 4096, "gated": False, "max_rows": 1, "is_coded": False}
    return choose(**{**settings, **changes}, table=table)  # type: ignore[arg-type]


def test_a_measured_config_goes_before_the_rule() -> None:
    measured = LinearConfig(row_tile=16, stages=7)
    shape = ProductShape(rows=4096, k=4096, gated=False, max_rows=1, is_coded=False)
    assert chosen({shape: measured}) is measured
    assert chosen({shape: measured}, max_rows=2) == chosen(None, max_rows=2) != measured


def test_a_library_multiplies_many_rows_only() -> None:
    assert not chosen(None, gemm="library", max_rows=128).library
    config = chosen(None, gemm="library", max_rows=256, is_coded=True)
    assert config.library
    assert config.decode_first


@given(SHAPES)
def test_the_rule_gives_what_kernels_can_run(shape: ProductShape) -> None:
    config = by_rule(shape)
    tile = config.row_tile
    assert tile in (16, 32, 64, 128, 256)
    assert tile < 2 * max(shape.max_rows, 9)
    assert config.features in (64, 128)
    assert config.k_tile in (64, 128)
    assert not (config.parts and shape.gated)
    assert config.decode_first == (shape.is_coded and shape.max_rows > FUSED_ROWS)
    assert stage_bytes(shape, config) * config.stages <= SHARED_BYTES


def stage_bytes(shape: ProductShape, config: LinearConfig) -> int:
    """Return the bytes of weights and rows that a program keeps on their way. A coded matrix's rows stay one
    turn longer."""
    features = config.features * (1 + shape.gated)
    if shape.is_coded and not config.decode_first:
        return features * 192 + config.row_tile * 256 * (config.stages + 1) // config.stages
    return (features + config.row_tile) * 2 * config.k_tile


@pytest.mark.parametrize(
    ("rows", "max_rows", "features", "row_tile"),
    [(4096, 128, 64, 128), (4096, 512, 128, 128), (4096, 8192, 128, 256), (28672, 256, 128, 256)],
)
def test_tiles_are_as_big_as_the_device_stays_full(
    rows: int, max_rows: int, features: int, row_tile: int
) -> None:
    config = chosen(None, matrix_rows=rows, max_rows=max_rows)
    assert (config.features, config.row_tile) == (features, row_tile)
