"""Embed: the exact rows of the table, whatever form it is kept in, times one number."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnnecessaryComparison=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.device.shapes import K_TILE, ROW_BLOCK
from firelane.backends.cuda.kernels.matmul.operands import matrix_operand
from firelane.backends.cuda.kernels.matmul.quantised import decode, head_numbers
from firelane.backends.cuda.kernels.matmul.quantised_ptx import is_half
from firelane.backends.cuda.kernels.sums import columns_of
from firelane.backends.cuda.step.tables import TOKENS, StepTables
from firelane.backends.cuda.weights.matrices import Matrix
from firelane.program.values import RankPart

_ROW_BLOCK = tl.constexpr(ROW_BLOCK)
_TILE = tl.constexpr(K_TILE)
ESCAPES = 256  # of a block's list that are looked through at once


@triton.jit
def decoded(matrix, base, row, columns, mask, K: tl.constexpr):
    """float32: weights of a row in the coded form (see matrices.py)."""
    half: tl.constexpr = _TILE // 2
    places = row * (K // 2) + (columns // _TILE) * half + columns % half
    byte = tl.load(matrix.codes + places, mask=mask, other=0).to(tl.int32)
    code = (byte >> (columns % _TILE // half * 4)) & 15
    bits = tl.load(matrix.data + row * K + columns, mask=mask, other=0).to(tl.int32)
    exponent = tl.where(code == 0, 0, code + base)
    return (((bits & 128) << 24) | (exponent << 23) | ((bits & 127) << 16)).to(tl.float32, bitcast=True)


@triton.jit
def dequantised(matrix, row, columns, mask, K: tl.constexpr):
    """float32: weights of a row of a quantised matrix. Escapes come out as they may."""
    half: tl.constexpr = _TILE // 2
    groups: tl.constexpr = K // matrix.group_size
    at = row // _ROW_BLOCK * (groups * _ROW_BLOCK) + row % _ROW_BLOCK
    at += columns // matrix.group_size * _ROW_BLOCK
    scale = head_numbers(tl.load(matrix.scales + at, mask=mask, other=0))
    minimum = None
    if matrix.minima is not None:
        minimum = head_numbers(tl.load(matrix.minima + at, mask=mask, other=0))
    if matrix.units is not None:
        per_block: tl.constexpr = K // 256 * _ROW_BLOCK
        kinds: tl.constexpr = 1 + (matrix.minima is not None)
        at = row // _ROW_BLOCK * (kinds * per_block) + row % _ROW_BLOCK + columns // 256 * _ROW_BLOCK
        scale *= tl.load(matrix.units + at, mask=mask, other=0.0).to(tl.float32)
        if matrix.minima is not None:
            minimum *= tl.load(matrix.units + at + per_block, mask=mask, other=0.0).to(tl.float32)
    if is_half(matrix.numbers):
        places = row * (K // 2) + columns // _TILE * half + columns % half
        code = tl.load(matrix.data + places, mask=mask, other=0)
        lower = decode(code, scale, minimum, None, None, matrix.numbers, False)
        upper = decode(code, scale, minimum, None, None, matrix.numbers, True)
        weights = tl.where(columns % _TILE < half, lower, upper)
    else:
        code = tl.load(matrix.data + row * K + columns, mask=mask, other=0)
        weights = decode(code, scale, minimum, None, None, matrix.numbers, False)
    return weights.to(tl.float32)


@triton.jit
def embed_kernel(  # limits: exempt (kernel: a table, tokens, and the output)
    matrix,
    token_ids,
    counts,
    out,
    out_stride,
    COUNT: tl.constexpr,
    SCALE: tl.constexpr,
    FIRST: tl.constexpr,
    VOCAB: tl.constexpr,
    WIDTH: tl.constexpr,
    K: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    ESCAPES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a token and BLOCK columns: it stores them, then puts those of the row's escapes that are
    its own in their places. FIRST: the id of the table's first row, where others have the rest, or -1."""
    token = tl.program_id(0)
    row = tl.load(token_ids + token)
    if token >= tl.load(counts + COUNT):
        return
    if FIRST >= 0:
        row -= FIRST
    is_here = (row >= 0) & (row < VOCAB)
    row = tl.where(is_here, row, 0)
    block = row // ROW_BLOCK
    escapes = matrix.escapes
    first, last = tl.load(escapes.starts + block), tl.load(escapes.starts + block + 1)
    begin = tl.program_id(1) * BLOCK
    columns = begin + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    if matrix.numbers is not None:
        x = dequantised(matrix, row.to(tl.int64), columns, mask, K)
    elif matrix.bases is None:
        x = tl.load(matrix.data + row.to(tl.int64) * K + columns, mask=mask, other=0.0).to(tl.float32)
    else:
        base = tl.load(matrix.bases + block).to(tl.int32)
        x = decoded(matrix, base, row.to(tl.int64), columns, mask, K)
    if SCALE != 1.0:
        x *= SCALE
    if FIRST >= 0:
        x = tl.where(is_here, x, 0.0)
        last = tl.where(is_here, last, first)
    out += token.to(tl.int64) * out_stride
    tl.store(out + columns, x.to(out.dtype.element_ty), mask=mask)
    tl.debug_barrier()  # an escape's place was stored by another thread
    for at in range(first, last, ESCAPES):
        entries = at + tl.arange(0, ESCAPES)
        place = tl.load(escapes.where + entries, mask=entries < last, other=-1)
        column = place & 0xFFFFFF
        mine = (place >> 24 == row % ROW_BLOCK) & (column >= begin) & (column < begin + BLOCK)
        value = tl.load(escapes.numbers + entries, mask=mine, other=0.0)
        if SCALE != 1.0:
            value = value.to(tl.float32) * SCALE
        tl.store(out + column, value.to(out.dtype.element_ty), mask=mine)


def embed(
    table: Matrix,
    tables: StepTables,
    out: Tensor,
    *,
    scale: float = 1.0,
    part: RankPart | None = None,
    max_tokens: int,
) -> Launch:
    """out[t] = row token_ids[t] of the table, exactly, times scale; of a token id that the table has not,
    some row, or zeros where it is a part."""
    block = columns_of(table.k)
    return Launch(
        kernel=embed_kernel,
        grid=(max_tokens, -(-table.k // block)),
        arguments={
            "matrix": matrix_operand(table),
            "K": table.padded_k,
            "token_ids": tables.token_ids,
            "counts": tables.counts,
            "out": out,
            "out_stride": out.stride(0),
            "COUNT": TOKENS,
            "SCALE": scale,
            "FIRST": part.first if part else -1,
            "VOCAB": table.rows,
            "WIDTH": table.k,
            "ROW_BLOCK": ROW_BLOCK,
            "ESCAPES": ESCAPES,
            "BLOCK": block,
        },
    )
