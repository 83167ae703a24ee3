"""Embed: the exact rows of the table, whatever form it is kept in, times one number."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.kernels.sums import columns_of
from firelane.backends.cuda.launch import Launch
from firelane.backends.cuda.matrices import Matrix, PlainMatrix
from firelane.backends.cuda.shapes import K_TILE, ROW_BLOCK
from firelane.backends.cuda.tables import TOKENS, StepTables

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
def embed_kernel(  # limits: exempt (kernel: a matrix in pointers)
    data,
    codes,
    bases,
    starts,
    where,
    values,
    token_ids,
    counts,
    out,
    out_stride,
    COUNT: tl.constexpr,
    SCALE: tl.constexpr,
    VOCAB: tl.constexpr,
    WIDTH: tl.constexpr,
    K: tl.constexpr,
    K_TILE: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    ESCAPES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a token and BLOCK columns: it stores them, then puts those of the row's escapes that are
    its own in their places."""
    token = tl.program_id(0)
    row = tl.load(token_ids + token)
    if token >= tl.load(counts + COUNT):
        return
    row = tl.where((row >= 0) & (row < VOCAB), row, 0)
    block = row // ROW_BLOCK
    first, last = tl.load(starts + block), tl.load(starts + block + 1)
    begin = tl.program_id(1) * BLOCK
    columns = begin + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    if bases is None:
        x = tl.load(data + row.to(tl.int64) * K + columns, mask=mask, other=0.0).to(tl.float32)
    else:
        base = tl.load(bases + block).to(tl.int32)
        x = decoded(data, codes, base, row.to(tl.int64), columns, mask, K=K, K_TILE=K_TILE)
    if SCALE != 1.0:
        x *= SCALE
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


def embed(table: Matrix, tables: StepTables, out: Tensor, *, scale: float = 1.0, max_tokens: int) -> Launch:
    """out[t] = row token_ids[t] of the table, exactly, times scale; of a token id that the table has not,
    some row."""
    block = columns_of(table.k)
    return Launch(
        kernel=embed_kernel,
        grid=(max_tokens, -(-table.k // block)),
        arguments={
            **_matrix_arguments(table),
            "starts": table.escapes.starts,
            "where": table.escapes.where,
            "values": table.escapes.values,
            "token_ids": tables.token_ids,
            "counts": tables.counts,
            "out": out,
            "out_stride": out.stride(0),
            "COUNT": TOKENS,
            "SCALE": scale,
            "VOCAB": table.rows,
            "WIDTH": table.k,
            "K_TILE": K_TILE,
            "ROW_BLOCK": ROW_BLOCK,
            "ESCAPES": ESCAPES,
            "BLOCK": block,
        },
    )


def _matrix_arguments(table: Matrix) -> dict[str, Any]:
    if isinstance(table, PlainMatrix):
        return {"data": table.data, "codes": None, "bases": None, "K": table.data.shape[1]}
    return {"data": table.low, "codes": table.codes, "bases": table.bases, "K": table.low.shape[1]}
