"""Tiling of a product, for its launch: what all kernels that multiply with a matrix are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from firelane.backends.cuda.device.launch import Grid, Launch, Work
from firelane.backends.cuda.device.linear_config import LinearConfig
from firelane.backends.cuda.device.shapes import K_TILE, ROW_BLOCK
from firelane.backends.cuda.kernels.matmul import coded, quantised
from firelane.backends.cuda.kernels.matmul.transpose import are_worth, transpose
from firelane.backends.cuda.step.sum_order import SumOrder
from firelane.backends.cuda.weights.matrices import CodedMatrix, Matrix, PlainMatrix, QuantisedMatrix

GROUP = 8  # row tiles that meet a tile of features one after the other


def decode_first(matrix: CodedMatrix | QuantisedMatrix, scratch: Tensor | None) -> tuple[Launch, PlainMatrix]:
    """The launch that decodes all of `matrix` into the scratch, and the plain matrix that it is then."""
    assert scratch is not None, "a matrix that is decoded as a whole needs scratch"
    if isinstance(matrix, CodedMatrix):
        return coded.decode_matrix(matrix, scratch)
    return quantised.decode_matrix(matrix, scratch)


def tiling(padded_rows: int, max_rows: int, config: LinearConfig) -> dict[str, Any]:
    """padded_rows: of the matrix, as far as it is tiled; max_rows: of x."""
    return {
        "feature_tiles": padded_rows // config.features,
        "row_tiles": -(-max_rows // config.row_tile),
        "FEATURES": config.features,
        "ROW_TILE": config.row_tile,
        "K_TILE": config.k_tile,
        "GROUP": GROUP,
    }


def transposed_for(
    matrix: Matrix,
    x: Tensor,
    x_t: Tensor | None,
    config: LinearConfig,
    counts: Tensor,
    count: int,
    max_rows: int,
) -> tuple[list[Work], Tensor | None]:
    """The transpose of x and its result; nothing where the config or the matrix has no use for it,
    or there is no buffer: results are the same."""
    if x_t is None or not config.transpose or not are_worth(matrix.escapes):
        return [], None
    launch, transposed = transpose(x, x_t, k=matrix.k, counts=counts, count=count, max_rows=max_rows)
    return [launch], transposed


def run_arguments(order: SumOrder) -> dict[str, Any]:
    """The runs of inputs that are summed apart."""
    return {
        "bounds": order.bounds,
        "SEGMENTS": order.count,
        "CUT": order.is_ragged,
    }


def escape_step(row_tile: int, transposed: Tensor | None) -> int:
    """Entries of a list of escapes that are taken at once: what is gathered for them has to fit the
    registers, one value in each if x is not transposed."""
    return 64 if transposed is not None else max(16, min(64, 4096 // row_tile))


def launch_of(kernel: Any, grid: Grid, arguments: Mapping[str, Any], config: LinearConfig) -> Launch:
    return Launch(kernel=kernel, grid=grid, arguments=arguments, warps=config.warps, stages=config.stages)


def fitting(config: LinearConfig, matrix: Matrix, padded_rows: int) -> LinearConfig:
    """The config, or the nearest one that this matrix can have; results are the same. padded_rows: of the
    matrix, as far as it is tiled."""
    is_coded = not isinstance(matrix, PlainMatrix)
    dtype = torch.bfloat16 if is_coded else matrix.data.dtype
    return fitted(config, is_coded=is_coded, dtype=dtype, padded_rows=padded_rows)


def fitted(config: LinearConfig, *, is_coded: bool, dtype: torch.dtype, padded_rows: int) -> LinearConfig:
    """fitting() of a matrix that is not there yet."""
    if is_coded:
        return replace(config, features=ROW_BLOCK, k_tile=K_TILE)
    if padded_rows % config.features:
        config = replace(config, features=ROW_BLOCK)
    if dtype == torch.float32:  # there is no product instruction for it: tiles of registers
        config = replace(config, k_tile=32, row_tile=min(config.row_tile, 32), stages=2)
    return config
