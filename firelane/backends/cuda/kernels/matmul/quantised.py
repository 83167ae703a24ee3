"""Quantised weights on their way into a product: bf16(scale * code - minimum), in registers; and the decode
of a whole matrix for a product with many rows."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportArgumentType=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.device.shapes import K_TILE, ROW_BLOCK
from firelane.backends.cuda.kernels.matmul.operands import matrix_operand
from firelane.backends.cuda.kernels.matmul.quantised_ptx import (
    constraints_of,
    decode_text,
    factor_of,
    is_half,
)
from firelane.backends.cuda.weights.matrices import PlainMatrix, QuantisedMatrix

_ROW_BLOCK = tl.constexpr(ROW_BLOCK)
_TILE = tl.constexpr(K_TILE)
_HALF = tl.constexpr(K_TILE // 2)
_TILES = 4  # of a row block, decoded by one program


@triton.jit
def decode(code, scale, minimum, low, high, NUMBERS: tl.constexpr, UPPER: tl.constexpr):
    """bf16, shaped as `code`, bytes. UPPER: codes of four bits are the upper halves of them. minimum None:
    none. low None: no bounds; else a weight is zero below `low` and from `high` on: scalars, int32, each with
    the same bf16 in both halves."""
    if factor_of(NUMBERS) != 1.0:
        scale *= factor_of(NUMBERS)
    text: tl.constexpr = decode_text(NUMBERS, UPPER, minimum is not None, low is not None)
    constraints: tl.constexpr = constraints_of(minimum is not None, low is not None)
    if minimum is None:
        weights = tl.inline_asm_elementwise(
            text, constraints, [code, scale], dtype=tl.bfloat16, is_pure=True, pack=4
        )
    elif low is None:
        weights = tl.inline_asm_elementwise(
            text, constraints, [code, scale, minimum], dtype=tl.bfloat16, is_pure=True, pack=4
        )
    else:
        weights = tl.inline_asm_elementwise(
            text, constraints, [code, scale, minimum, low, high], dtype=tl.bfloat16, is_pure=True, pack=4
        )
    return weights


@triton.jit
def rows_of(matrix, block):
    """Pointers to where the rows of a block begin: [ROW_BLOCK, 1]."""
    rows = (block * _ROW_BLOCK + tl.arange(0, _ROW_BLOCK)).to(tl.int64)[:, None]
    return matrix.data + rows * (matrix.k_tiles * (_HALF if is_half(matrix.numbers) else _TILE))


@triton.jit
def heads_from(heads, matrix, block):
    """Pointer to where a block's scales begin, or its minima."""
    return heads + block.to(tl.int64) * (matrix.k_tiles * _TILE // matrix.group_size * _ROW_BLOCK)


@triton.jit
def units_from(matrix, block):
    """Pointer to where a block's units begin; those of minima stand behind those of scales."""
    kinds: tl.constexpr = 1 + (matrix.minima is not None)  # pyright: ignore[reportAssignmentType]
    return matrix.units + block.to(tl.int64) * (kinds * (matrix.k_tiles // 2) * _ROW_BLOCK)


@triton.jit
def head_numbers(heads):
    """float32: scales or minima that were loaded; bytes are exponents of float32 powers of two."""
    if heads.dtype == tl.uint8:
        numbers = (heads.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    else:
        numbers = heads.to(tl.float32)
    return numbers


@triton.jit
def heads_of(heads, units, places):
    """float32 [ROW_BLOCK, groups, 1]: scales or minima. units: where their units of this tile lie, if any."""
    found = head_numbers(tl.load(heads + places))
    if units is not None:
        found *= tl.load(units + tl.arange(0, _ROW_BLOCK)[:, None]).to(tl.float32)
    return found[:, :, None]


@triton.jit
def codes_of(rows, tile, UPPER: tl.constexpr, NUMBERS: tl.constexpr):
    """Bytes with the codes of the lower or upper half of a tile of inputs; rows: where each one begins."""
    first = tile * _HALF if is_half(NUMBERS) else tile * _TILE + UPPER * _HALF
    return tl.load(rows + (first + tl.arange(0, _HALF))[None, :])


@triton.jit
def half_tile(matrix, block, low, high, tile, UPPER: tl.constexpr):
    """bf16 [ROW_BLOCK, half of a tile]: weights of a block of rows. low, high: the block's bounds, if any."""
    groups: tl.constexpr = max(_HALF // matrix.group_size, 1)  # pyright: ignore[reportAssignmentType]
    code = codes_of(rows_of(matrix, block), tile, UPPER, matrix.numbers)
    code = tl.reshape(code, (_ROW_BLOCK, groups, _HALF // groups))
    group = (tile * _TILE + UPPER * _HALF) // matrix.group_size + tl.arange(0, groups)
    places = group[None, :] * _ROW_BLOCK + tl.arange(0, _ROW_BLOCK)[:, None]
    units = None
    if matrix.units is not None:
        units = units_from(matrix, block) + tile // 2 * _ROW_BLOCK
    scale = heads_of(heads_from(matrix.scales, matrix, block), units, places)
    minimum = None
    if matrix.minima is not None:
        if units is not None:
            units += matrix.k_tiles // 2 * _ROW_BLOCK
        minimum = heads_of(heads_from(matrix.minima, matrix, block), units, places)
    weights = decode(code, scale, minimum, low, high, matrix.numbers, UPPER)
    return tl.reshape(weights, (_ROW_BLOCK, _HALF))


@triton.jit
def decode_matrix_kernel(matrix, out, TILES: tl.constexpr):
    """A row block's TILES tiles of inputs."""
    block = tl.program_id(1)
    low, high = None, None
    if matrix.bases is not None:
        low, high = tl.load(matrix.bases + 2 * block), tl.load(matrix.bases + 2 * block + 1)
    rows = (tl.arange(0, _ROW_BLOCK) + block * _ROW_BLOCK).to(tl.int64)[:, None]
    out += rows * (matrix.k_tiles * _TILE) + tl.arange(0, _HALF)[None, :]
    first = tl.program_id(0) * TILES
    for tile in range(first, min(first + TILES, matrix.k_tiles)):
        at = out + tile * _TILE
        tl.store(at, half_tile(matrix, block, low, high, tile, False))
        tl.store(at + _HALF, half_tile(matrix, block, low, high, tile, True))


def decode_matrix(matrix: QuantisedMatrix, out: Tensor) -> tuple[Launch, PlainMatrix]:
    """The launch that writes `matrix` in its plain form, escapes apart as ever, and what it is then.

    out: bf16, contiguous, at least padded rows * padded k elements; the plain matrix lies in it.
    """
    rows, k = matrix.padded_rows, matrix.padded_k
    data = out.view(-1)[: rows * k].view(rows, k)
    launch = Launch(
        kernel=decode_matrix_kernel,
        grid=(-(-k // (K_TILE * _TILES)), rows // ROW_BLOCK),
        arguments={"matrix": matrix_operand(matrix), "out": data, "TILES": _TILES},
        warps=4,
        stages=2,
    )
    return launch, PlainMatrix(data=data, rows=matrix.rows, k=matrix.k, escapes=matrix.escapes)
