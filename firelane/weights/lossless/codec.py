"""encode and decode: the codec on NumPy arrays, without files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from firelane.errors import CheckpointError
from firelane.weights.lossless.chunks import CHUNK_BYTES, ENTRY, ChunkEncoder, ChunkRecord, decode_chunk
from firelane.weights.lossless.planes import Bits
from firelane.weights.lossless.table import ChunkTable, chunk_count

SPAN_CHUNKS = 16  # what a thread takes at a time: 4 MiB

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A bf16 array in its at-rest form.

    shape: of the array. data: uint8 [bytes], the chunks' records one after the other. table: [chunks] of
    {stored_bytes: uint32, checksum: uint64}, as docs/lossless-format.md describes them.
    """

    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    table: NDArray[Any]

    @property
    def nbytes(self) -> int:
        """Size at rest, the chunk table included."""
        return self.data.nbytes + self.table.nbytes


def encode(array: NDArray[np.uint16], *, threads: int = 1) -> Encoded:
    """The at-rest form of `array`: uint16 holding the bits of bf16, any shape, any layout, any bit pattern.

    Decoding gives back the very same bits: NaN payloads, -0, subnormals and infinities included. TypeError
    for another dtype.
    """
    if array.dtype != np.uint16:
        raise TypeError(f"an array of uint16 (the bits of bf16) is needed, not of {array.dtype}")
    bits = np.ascontiguousarray(array).reshape(-1)
    step = SPAN_CHUNKS * CHUNK_BYTES // 2
    spans = [bits[at : at + step] for at in range(0, len(bits), step)]
    records = [record for part in _each(encode_span, spans, threads) for record in part]
    buffers = [np.frombuffer(b, np.uint8) for record in records for b in record.buffers]
    return Encoded(
        shape=array.shape,
        data=np.concatenate(buffers) if buffers else np.empty(0, np.uint8),
        table=np.array([(r.stored_bytes, r.checksum) for r in records], ENTRY),
    )


def decode(encoded: Encoded, *, threads: int = 1) -> NDArray[np.uint16]:
    """The array that was encoded: uint16 of encoded.shape, C-contiguous.

    Raises CheckpointError when shape, table and data do not belong together or a checksum is wrong; nothing
    is allocated before sizes were checked against each other.
    """
    table = _checked_table(encoded)
    bits = np.empty(encoded.shape, np.uint16)
    out = bits.reshape(-1).view(np.uint8)

    def decode_span(indices: range) -> None:
        for i in indices:
            record = encoded.data[table.offsets[i] : table.offsets[i + 1]]
            begin, end = table.chunk_range(i)
            try:
                decode_chunk(record, out[begin:end], compressed=True, expected=int(table.checksums[i]))
            except ValueError as error:
                raise CheckpointError(f"chunk {i}: {error}") from error

    chunks = len(table.checksums)
    spans = [range(i, min(i + SPAN_CHUNKS, chunks)) for i in range(0, chunks, SPAN_CHUNKS)]
    _each(decode_span, spans, threads)
    return bits


def encode_span(bits: Bits, chunk_bytes: int = CHUNK_BYTES) -> list[ChunkRecord]:
    """The compressed records of bits [n], contiguous."""
    encoder = ChunkEncoder()
    step = chunk_bytes // 2
    return [encoder.encode(bits[at : at + step]) for at in range(0, len(bits), step)]


def _checked_table(encoded: Encoded) -> ChunkTable:
    nbytes = 2 * prod(encoded.shape)
    if any(n < 0 for n in encoded.shape) or encoded.table.dtype != ENTRY or encoded.table.ndim != 1:
        raise CheckpointError("shape or chunk table is not valid; encode() makes them")
    if encoded.data.dtype != np.uint8 or encoded.data.ndim != 1 or not encoded.data.flags.c_contiguous:
        raise CheckpointError("data has to be a contiguous array of uint8 [bytes]; encode() makes it")
    if len(encoded.table) != chunk_count(nbytes, CHUNK_BYTES):
        raise CheckpointError(f"shape {list(encoded.shape)} does not have {len(encoded.table)} chunks")
    try:
        table = ChunkTable.of(encoded.table, nbytes=nbytes, chunk_bytes=CHUNK_BYTES, compressed=True)
    except ValueError as error:
        raise CheckpointError(f"chunk table: {error}") from error
    if table.record_bytes != len(encoded.data):
        raise CheckpointError(f"{len(encoded.data)} bytes of data, not the table's {table.record_bytes}")
    return table


def _each(work: Callable[[Any], R], items: Sequence[Any], threads: int) -> list[R]:
    if threads == 1 or len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads, thread_name_prefix="lossless") as pool:
        return list(pool.map(work, items))
