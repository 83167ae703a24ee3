"""A strict reader of the header of a GGUF file (github.com/ggml-org/ggml, docs/gguf.md).

    4 bytes "GGUF", version (uint32), number of tensors and of metadata entries (uint64 each)
    metadata    key (string), type (uint32), value
    tensors     name (string), number of axes (uint32), sizes from the last axis to the first (uint64 each),
                type (uint32), offset in the data (uint64)
    data        from the next multiple of general.alignment on

All numbers are little-endian; a string is its length (uint64) and its bytes in UTF-8. Every figure is checked
against the file before anything is made of it: no read leaves the file, and nothing larger than the file is
made.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from firelane.errors import CheckpointError


@dataclass(frozen=True)
class BlockType:
    """A type by its name in llama.cpp; `number`: in files; `size`: numbers in a block of `nbytes` bytes."""

    name: str
    number: int
    size: int
    nbytes: int


_ALL = (
    BlockType("F32", 0, 1, 4),
    BlockType("F16", 1, 1, 2),
    BlockType("Q4_0", 2, 32, 18),
    BlockType("Q4_1", 3, 32, 20),
    BlockType("Q5_0", 6, 32, 22),
    BlockType("Q5_1", 7, 32, 24),
    BlockType("Q8_0", 8, 32, 34),
    BlockType("Q2_K", 10, 256, 84),
    BlockType("Q3_K", 11, 256, 110),
    BlockType("Q4_K", 12, 256, 144),
    BlockType("Q5_K", 13, 256, 176),
    BlockType("Q6_K", 14, 256, 210),
    BlockType("IQ2_XXS", 16, 256, 66),
    BlockType("IQ2_XS", 17, 256, 74),
    BlockType("IQ3_XXS", 18, 256, 98),
    BlockType("IQ1_S", 19, 256, 50),
    BlockType("IQ4_NL", 20, 32, 18),
    BlockType("IQ3_S", 21, 256, 110),
    BlockType("IQ2_S", 22, 256, 82),
    BlockType("IQ4_XS", 23, 256, 136),
    BlockType("IQ1_M", 29, 256, 56),
    BlockType("BF16", 30, 1, 2),
    BlockType("TQ1_0", 34, 256, 54),
    BlockType("TQ2_0", 35, 256, 66),
    BlockType("MXFP4", 39, 32, 17),
)
TYPES = {found.number: found for found in _ALL}


MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_AXES = 4
MAX_NAME_BYTES = 1024
MAX_ENTRIES = 1 << 20
"""Entries of metadata, and of tensors, at most."""
STRING, ARRAY, BOOL = 8, 9, 7
NUMBERS: dict[int, np.dtype[Any]] = {
    kind: np.dtype(code)
    for kind, code in {
        0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4",
        6: "<f4", BOOL: "?", 10: "<u8", 11: "<i8", 12: "<f8",
    }.items()
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor in its file: bytes begin .. end - 1. shape: from the first axis to the last."""

    type: BlockType
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """A file's own description. nbytes: of the header, without the data."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    nbytes: int


def read_header(path: Path, data: memoryview) -> GgufHeader:
    """The header of a file that `data` is all of. Raises CheckpointError naming the file and what is
    wrong."""
    try:
        return _read(_Cursor(data))
    except ValueError as error:
        raise CheckpointError(f"{path}: not a valid GGUF file: {error}; download it again") from None


def _read(cursor: _Cursor) -> GgufHeader:
    if bytes(cursor.take(4, "the magic number")) != MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = cursor.uint32("the version")
    if version not in VERSIONS:
        raise ValueError(f"version {version} (2 and 3 are known, of little-endian files)")
    num_tensors, num_entries = cursor.count("tensors"), cursor.count("metadata entries")
    metadata = _metadata(cursor, num_entries)
    described = _described(cursor, num_tensors)
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError(f"general.alignment is {str(alignment)[:40]}")
    start = -(-cursor.at // alignment) * alignment
    tensors = {
        name: _placed(name, *place, start=start, end=cursor.nbytes) for name, place in described.items()
    }
    _check_overlaps(tensors)
    return GgufHeader(metadata=metadata, tensors=tensors, nbytes=cursor.at)


def _metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string("a metadata key", MAX_NAME_BYTES)
        if key in found:
            raise ValueError(f"metadata {key!r} stands there twice")
        found[key] = _value(cursor, cursor.uint32(f"the type of {key!r}"), key)
    return found


def _value(cursor: _Cursor, kind: int, key: str) -> Any:
    if kind == STRING:
        return cursor.string(f"metadata {key!r}")
    if kind == ARRAY:
        return _array(cursor, key)
    return _numbers(cursor, kind, 1, key)[0]


def _array(cursor: _Cursor, key: str) -> list[Any]:
    kind, count = cursor.uint32(f"metadata {key!r}"), cursor.uint64(f"metadata {key!r}")
    if kind == STRING:
        return cursor.strings(count, f"metadata {key!r}")
    return _numbers(cursor, kind, count, key)


def _numbers(cursor: _Cursor, kind: int, count: int, key: str) -> list[Any]:
    dtype = NUMBERS.get(kind)
    if dtype is None:
        what = "an array of arrays" if kind == ARRAY else f"of type {kind}, which is not known"
        raise ValueError(f"metadata {key!r} is {what}")
    taken = cursor.take(count * dtype.itemsize, f"metadata {key!r}")
    if kind == BOOL:
        return [byte != 0 for byte in taken]
    return np.frombuffer(taken, dtype).tolist()


def _described(cursor: _Cursor, count: int) -> dict[str, tuple[int, tuple[int, ...], int]]:
    """By name the type, the shape and the offset in the data of each tensor."""
    found: dict[str, tuple[int, tuple[int, ...], int]] = {}
    for _ in range(count):
        name = cursor.string("a tensor's name", MAX_NAME_BYTES)
        if name in found:
            raise ValueError(f"tensor {name!r} stands there twice")
        what = f"tensor {name!r}"
        axes = cursor.uint32(what)
        if not 0 < axes <= MAX_AXES:
            raise ValueError(f"{what} has {axes} axes")
        sizes = [cursor.uint64(what) for _ in range(axes)]
        found[name] = (cursor.uint32(what), tuple(reversed(sizes)), cursor.uint64(what))
    return found


def _placed(
    name: str, kind: int, shape: tuple[int, ...], offset: int, *, start: int, end: int
) -> StoredTensor:
    known = TYPES.get(kind)
    if known is None:
        raise ValueError(f"tensor {name!r} is of type {kind}, which is not known")
    if 0 in shape or shape[-1] % known.size:
        raise ValueError(
            f"tensor {name!r} has shape {list(shape)}, which {known.name} cannot have: rows are of blocks of "
            f"{known.size}"
        )
    begin = start + offset
    nbytes = prod(shape) // known.size * known.nbytes
    if begin + nbytes > end:
        raise ValueError(f"tensor {name!r} ends at byte {begin + nbytes} of {end}: the file is truncated")
    return StoredTensor(type=known, shape=shape, begin=begin, end=begin + nbytes)


def _check_overlaps(tensors: Mapping[str, StoredTensor]) -> None:
    ordered = sorted(tensors.items(), key=lambda item: item[1].begin)
    for (_, before), (name, tensor) in pairwise(ordered):
        if tensor.begin < before.end:
            raise ValueError(f"tensor {name!r} overlaps another")


class _Cursor:
    """A place in a file, which moves on as things are read. ValueError where the file ends before."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.at = 0

    @property
    def nbytes(self) -> int:
        return len(self._data)

    def take(self, nbytes: int, what: str) -> memoryview:
        if nbytes > len(self._data) - self.at:
            raise ValueError(f"{what} is longer than the file")
        self.at += nbytes
        return self._data[self.at - nbytes : self.at]

    def uint32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def uint64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def count(self, what: str) -> int:
        found = self.uint64(f"the number of {what}")
        if found > MAX_ENTRIES:
            raise ValueError(f"{found} {what}")
        return found

    def string(self, what: str, most_bytes: int | None = None) -> str:
        nbytes = self.uint64(what)
        if most_bytes is not None and nbytes > most_bytes:
            raise ValueError(f"{what} has {nbytes} bytes")
        return str(self.take(nbytes, what), "utf-8")

    def strings(self, count: int, what: str) -> list[str]:
        """Several strings, without a call for each: vocabularies have hundreds of thousands."""
        if count * 8 > len(self._data) - self.at:
            raise ValueError(f"{what} is longer than the file")
        data, at, end = self._data, self.at, len(self._data)
        found: list[str] = []
        length = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at + 8 > end:
                raise ValueError(f"{what} is longer than the file")
            stop = at + 8 + length(data, at)[0]
            if stop > end:
                raise ValueError(f"{what} is longer than the file")
            found.append(str(data[at + 8 : stop], "utf-8"))
            at = stop
        self.at = at
        return found
