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
from firelane.backends.cuda.kernels.matmul.quantised import decode, head_numbers
from firelane.backends.cuda.kernels.matmul.quantised_ptx import is_half
from firelane.backends.cuda.kernels.matmul.tiling import form_arguments
from firelane.backends.cuda.kernels.sums import columns_of
from firelane.backends.cuda.step.tables import TOKENS, StepTables
from firelane.backends.cuda.weights.matrices import Matrix
from firelane.program.values import RankPart

_ROW_BLOCK = tl.constexpr(ROW_BLOCK)
_TILE = tl.constexpr(K_TILE)
ESCAPES = 256  # of a block's list that are looked through at once


@triton.jit
def decoded(  # limits: exempt (kernel: a matrix in pointers)
    low, codes, base, row, columns, mask, K: tl.constexpr, K_TILE: tl.constexpr
):
    """float32: weights of a row in the coded form (see matrices.py)."""
    half: tl.constexpr = K_TILE // 2
    places = row * (K // 2) + (columns // K_TILE) * half + columns % half
    byte = tl.load(codes + places, mask=mask, other=0).to(tl.int32)
    code = (byte >> (columns % K_TILE // half * 4)) & 15
    bits = tl.load(low + row * K + columns, mask=mask, other=0).to(tl.int32)
    exponent = tl.where(code == 0, 0, code + base)
    return (((bits & 128) << 24) | (exponent << 23) | ((bits & 127) << 16)).to(tl.float32, bitcast=True)


@triton.jit
def dequantised(  # limits: exempt (kernel: a matrix in pointers)
    data,
    scales,
    minima,
    units,
    row,
    columns,
    mask,
    K: tl.constexpr,
    NUMBERS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
):
    """float32: weights of a row of a quantised matrix. Escapes come out as they may."""
    half: tl.constexpr = _TILE // 2
    groups: tl.constexpr = K // GROUP_SIZE
    at = row // _ROW_BLOCK * (groups * _ROW_BLOCK) + row % _ROW_BLOCK + columns // GROUP_SIZE * _ROW_BLOCK
    scale = head_numbers(tl.load(scales + at, mask=mask, other=0))
    minimum = None
    if minima is not None:
        minimum = head_numbers(tl.load(minima + at, mask=mask, other=0))
    if units is not None:
        per_block: tl.constexpr = K // 256 * _ROW_BLOCK
        at = row // _ROW_BLOCK * ((1 + (minima is not None)) * per_block) + row % _ROW_BLOCK
        at += columns // 256 * _ROW_BLOCK
        scale *= tl.load(units + at, mask=mask, other=0.0).to(tl.float32)
        if minima is not None:
            minimum *= tl.load(units + at + per_block, mask=mask, other=0.0).to(tl.float32)
    if is_half(NUMBERS):
        places = row * (K // 2) + columns // _TILE * half + columns % half
        code = tl.load(data + places, mask=mask, other=0)
        lower = decode(code, scale, minimum, None, None, NUMBERS, False)
        upper = decode(code, scale, minimum, None, None, NUMBERS, True)
        weights = tl.where(columns % _TILE < half, lower, upper)
    else:
        code = tl.load(data + row * K + columns, mask=mask, other=0)
        weights = decode(code, scale, minimum, None, None, NUMBERS, False)
    return weights.to(tl.float32)


@triton.jit
def embed_kernel(  # limits: exempt (kernel: a matrix in pointers)
    data,
    codes,
    bases,
    scales,
    minima,
    units,
    starts,
    where,
    values,
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
    K_TILE: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    ESCAPES: tl.constexpr,
    BLOCK: tl.constexpr,
    NUMBERS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
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
    first, last = tl.load(starts + block), tl.load(starts + block + 1)
    begin = tl.program_id(1) * BLOCK
    columns = begin + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    if NUMBERS is not None:
        x = dequantised(data, scales, minima, units, row.to(tl.int64), columns, mask, K, NUMBERS, GROUP_SIZE)
    elif bases is None:
        x = tl.load(data + row.to(tl.int64) * K + columns, mask=mask, other=0.0).to(tl.float32)
    else:
        base = tl.load(bases + block).to(tl.int32)
        x = decoded(data, codes, base, row.to(tl.int64), columns, mask, K=K, K_TILE=K_TILE)
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
        place = tl.load(where + entries, mask=entries < last, other=-1)
        column = place & 0xFFFFFF
        mine = (place >> 24 == row % ROW_BLOCK) & (column >= begin) & (column < begin + BLOCK)
        value = tl.load(values + entries, mask=mine, other=0.0)
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
            **form_arguments(table),
            "K": table.padded_k,
            "starts": table.escapes.starts,
            "where": table.escapes.where,
            "values": table.escapes.values,
            "token_ids": tables.token_ids,
            "counts": tables.counts,
            "out": out,
            "out_stride": out.stride(0),
            "COUNT": TOKENS,
            "SCALE": scale,
            "FIRST": part.first if part else -1,
            "VOCAB": table.rows,
            "WIDTH": table.k,
            "K_TILE": K_TILE,
            "ROW_BLOCK": ROW_BLOCK,
            "ESCAPES": ESCAPES,
            "BLOCK": block,
        },
    )
