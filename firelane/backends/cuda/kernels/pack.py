# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.
"""Packing a matrix on the device: the range of each block of rows, its escapes listed and taken out, and the
coded form. What coded_reference.py does, bit for bit; bf16 is read and written as the bits that it is.

A matrix is read once to find its ranges and twice to split it (once where a block has no escapes), and
written once at most: 8 bytes moved for a weight. That is 64 GB for 8 billion of them, some tens of
milliseconds.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.device.shapes import K_TILE, ROW_BLOCK
from firelane.backends.cuda.kernels.matmul.operands import EscapeLists, escape_lists
from firelane.backends.cuda.weights.matrices import BASES, RANGE, ROW_SHIFT, CodedMatrix, Escapes, PlainMatrix

BASE, ESCAPES, INFINITE = range(3)
"""Rows of what find_ranges() tells, int32 [3, blocks]: of each block the base, how many escapes that leaves,
and how many weights are infinite or no numbers."""

_CHUNK = 4096  # a block of rows holds a multiple of it
_BASES = tl.constexpr(BASES)
_RANGE = tl.constexpr(RANGE)
_ROW_SHIFT = tl.constexpr(ROW_SHIFT)
_ROW_BLOCK = tl.constexpr(ROW_BLOCK)
_HALF = tl.constexpr(K_TILE // 2)


@triton.jit(do_not_specialize=["blocks"])
def find_ranges_kernel(  # limits: exempt (kernel)
    words, found, block_size, blocks, CHUNK: tl.constexpr
):
    """Count each exponent in a block of rows, `block_size` words, and find the range that follows from
    that."""
    block = tl.program_id(0)
    words += block.to(tl.int64) * block_size
    lane = tl.arange(0, CHUNK)
    counts = tl.zeros([256], tl.int32)
    zeros = tl.zeros([CHUNK], tl.int32)
    for at in range(0, block_size, CHUNK):
        word = tl.load(words + at + lane).to(tl.int32)
        counts += tl.histogram(word >> 7 & 0xFF, 256)
        zeros += (word & 0x7FFF == 0).to(tl.int32)
    exponent = tl.arange(0, 256)
    counts -= tl.where(exponent == 0, tl.sum(zeros), 0)
    up_to = tl.cumsum(counts, axis=0)
    kept = tl.gather(up_to, tl.minimum(exponent + _RANGE, 255), axis=0) - up_to  # with base = exponent
    rank = kept.to(tl.int64) * 256 + (255 - exponent)  # the most kept, then the lowest base
    best = tl.max(tl.where(exponent < _BASES, rank, -1))
    tl.store(found + block, 255 - (best & 255).to(tl.int32))
    tl.store(found + blocks + block, tl.sum(counts) - (best >> 8).to(tl.int32))
    tl.store(found + 2 * blocks + block, tl.sum(tl.where(exponent == 255, counts, 0)))


@triton.jit
def codes_of(word, base):
    """The code of each word, 0 outside of the range, and which words are escapes."""
    distance = (word >> 7 & 0xFF) - base
    inside = (distance >= 1) & (distance <= _RANGE)
    return tl.where(inside, distance, 0), (word & 0x7FFF != 0) & ~inside


@triton.jit
def list_escapes(word, escape, at, next_entry, lists):
    """Write the escapes among `word` [rows, inputs], whose first input is `at`, each row's behind its next
    entry; returns the entries after them."""
    row = tl.arange(0, word.shape[0])[:, None]
    lane = tl.arange(0, word.shape[1])[None, :]
    entry = next_entry[:, None] + tl.cumsum(escape.to(tl.int32), axis=1) - 1
    tl.store(lists.where + entry, row << _ROW_SHIFT | (at + lane), mask=escape)
    tl.store(lists.numbers + entry, word.to(tl.int16), mask=escape)
    return next_entry + tl.sum(escape.to(tl.int32), axis=1)


@triton.jit
def first_entries(words, at_row, begin, base, k):
    """The places where each row's escapes begin in the lists: [rows], behind each other from `begin` on."""
    counts = tl.zeros([_ROW_BLOCK], tl.int32)
    lane = tl.arange(0, _HALF)[None, :]
    for at in range(0, k, _HALF):
        _, escape = codes_of(tl.load(words + at_row + at + lane).to(tl.int32), base)
        counts += tl.sum(escape.to(tl.int32), axis=1)
    return begin + tl.cumsum(counts, axis=0) - counts


@triton.jit
def split_kernel(words, bases, lists, k):
    """List the escapes of a block of rows and make them zero, in place."""
    block = tl.program_id(0)
    begin, end = tl.load(lists.starts + block), tl.load(lists.starts + block + 1)
    if begin < end:
        base = tl.load(bases + block).to(tl.int32)
        at_row = (block * _ROW_BLOCK + tl.arange(0, _ROW_BLOCK)).to(tl.int64)[:, None] * k
        entries = first_entries(words, at_row, begin, base, k)
        lane = tl.arange(0, _HALF)[None, :]
        for at in range(0, k, _HALF):
            place = words + at_row + at + lane
            word = tl.load(place).to(tl.int32)
            _, escape = codes_of(word, base)
            entries = list_escapes(word, escape, at, entries, lists)
            tl.store(place, tl.zeros_like(word).to(tl.int16), mask=escape)


@triton.jit
def encode_kernel(words, bases, lists, low, codes, k):
    """List the escapes of a block of rows, and write the coded form of the others."""
    block = tl.program_id(0)
    base = tl.load(bases + block).to(tl.int32)
    begin, end = tl.load(lists.starts + block), tl.load(lists.starts + block + 1)
    rows = (block * _ROW_BLOCK + tl.arange(0, _ROW_BLOCK)).to(tl.int64)[:, None]
    lane = tl.arange(0, _HALF)[None, :]
    entries = tl.zeros([_ROW_BLOCK], tl.int32)
    if begin < end:
        entries = first_entries(words, rows * k, begin, base, k)
    for at in range(0, k, 2 * _HALF):
        place = rows * k + at + lane
        first = tl.load(words + place).to(tl.int32)
        second = tl.load(words + place + _HALF).to(tl.int32)
        first_code, first_escape = codes_of(first, base)
        second_code, second_escape = codes_of(second, base)
        entries = list_escapes(first, first_escape, at, entries, lists)
        entries = list_escapes(second, second_escape, at + _HALF, entries, lists)
        tl.store(low + place, low_of(first, first_code, first_escape))
        tl.store(low + place + _HALF, low_of(second, second_code, second_escape))
        both = first_code | second_code << 4
        tl.store(codes + rows * (k // 2) + at // 2 + lane, both.to(tl.uint8))


@triton.jit
def low_of(word, code, escape):
    """uint8: sign and mantissa, the sign alone of a zero, nothing of an escape."""
    sign, mantissa = word >> 8 & 0x80, tl.where(code == 0, 0, word & 0x7F)
    return tl.where(escape, 0, sign | mantissa).to(tl.uint8)


@triton.jit(do_not_specialize=["blocks"])
def count_infinite_kernel(values, found, block_size, blocks, CHUNK: tl.constexpr):
    """Count numbers of a block of float32 that are infinite or no numbers."""
    block = tl.program_id(0)
    values += block.to(tl.int64) * block_size
    count = tl.zeros([CHUNK], tl.int32)
    for at in range(0, block_size, CHUNK):
        word = tl.load(values + at + tl.arange(0, CHUNK))
        count += (word & 0x7F800000 == 0x7F800000).to(tl.int32)
    tl.store(found + 2 * blocks + block, tl.sum(count))


def find_ranges(words: Tensor, found: Tensor) -> Launch:
    """words: bf16 [padded rows, padded k]; found: int32 [3, blocks], may be pinned: see BASE."""
    rows, k = words.shape
    blocks = rows // ROW_BLOCK
    return Launch(
        kernel=find_ranges_kernel,
        grid=(blocks,),
        arguments={
            "words": words.view(torch.int16),
            "found": found,
            "block_size": ROW_BLOCK * k,
            "blocks": blocks,
            "CHUNK": _CHUNK,
        },
        warps=8,
    )


def count_infinite(values: Tensor, found: Tensor) -> Launch:
    """values: float32 [padded rows, padded k]; found: as of find_ranges(), but only INFINITE is written."""
    rows, k = values.shape
    blocks = rows // ROW_BLOCK
    return Launch(
        kernel=count_infinite_kernel,
        grid=(blocks,),
        arguments={
            "values": values.view(torch.int32),
            "found": found,
            "block_size": ROW_BLOCK * k,
            "blocks": blocks,
            "CHUNK": _CHUNK,
        },
        warps=8,
    )


def split(matrix: PlainMatrix, bases: Tensor) -> Launch:
    """Take the escapes out of matrix.data into its lists, which have the room: `starts` is known, as are the
    bases, uint8 [blocks]."""
    return Launch(
        kernel=split_kernel,
        grid=(matrix.padded_rows // ROW_BLOCK,),
        arguments={
            "words": matrix.data.view(torch.int16),
            "bases": bases,
            "lists": _words_of(matrix.escapes),
            "k": matrix.data.shape[1],
        },
        warps=8,
    )


def encode(words: Tensor, matrix: CodedMatrix) -> Launch:
    """Write the coded form of `words`, bf16 as matrix.low is shaped, and the lists of its escapes. The bases
    and escapes.starts are known."""
    return Launch(
        kernel=encode_kernel,
        grid=(matrix.padded_rows // ROW_BLOCK,),
        arguments={
            "words": words.view(torch.int16),
            "bases": matrix.bases,
            "lists": _words_of(matrix.escapes),
            "low": matrix.low,
            "codes": matrix.codes,
            "k": words.shape[1],
        },
        warps=16,
    )


def _words_of(escapes: Escapes) -> EscapeLists:
    lists = escape_lists(escapes)
    return lists._replace(numbers=lists.numbers.view(torch.int16))
