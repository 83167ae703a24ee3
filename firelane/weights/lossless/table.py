"""ChunkTable: where the chunks of one tensor lie and what they must decode to, checked once when made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.weights.lossless.chunks import FRAME_OVERHEAD_BYTES

# Streams of compressed tensors are padded with zeros to this, so that tensors behind them stay aligned.
STREAM_ALIGNMENT_BYTES = 8


def chunk_count(nbytes: int, chunk_bytes: int) -> int:
    return -(-nbytes // chunk_bytes)


@dataclass(frozen=True, kw_only=True)
class ChunkTable:
    """`nbytes` original bytes in chunks of `chunk_bytes`; record i lies at offsets[i] .. offsets[i + 1] - 1
    of the stored tensor. offsets: int64 [chunks + 1]; checksums: uint64 [chunks].
    """

    nbytes: int
    chunk_bytes: int
    compressed: bool
    offsets: NDArray[np.int64]
    checksums: NDArray[np.uint64]

    @classmethod
    def of(cls, entries: NDArray[Any], *, nbytes: int, chunk_bytes: int, compressed: bool) -> ChunkTable:
        """From entries [chunks] of chunks.ENTRY. Raises ValueError when they cannot be true."""
        chunks = chunk_count(nbytes, chunk_bytes)
        if len(entries) != chunks:
            raise ValueError(f"{len(entries)} chunks are listed, {chunks} are needed")
        if compressed and nbytes % 2:
            raise ValueError(f"{nbytes} bytes are no bf16 weights")
        stored = entries["stored_bytes"].astype(np.int64)
        original = np.full(chunks, chunk_bytes, np.int64)
        if chunks:
            original[-1] = nbytes - (chunks - 1) * chunk_bytes
        low = original // 2 + 1 if compressed else original
        high = original + FRAME_OVERHEAD_BYTES if compressed else original
        wrong = np.flatnonzero((stored < low) | (stored > high))
        if len(wrong):
            raise ValueError(f"chunk {wrong[0]} cannot have {stored[wrong[0]]} bytes")
        return cls(
            nbytes=nbytes,
            chunk_bytes=chunk_bytes,
            compressed=compressed,
            offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(stored)]),
            checksums=entries["checksum"].astype(np.uint64),
        )

    @property
    def record_bytes(self) -> int:
        """Bytes of all records, padding excluded."""
        return int(self.offsets[-1])

    @property
    def stored_bytes(self) -> int:
        """Bytes of the stored tensor, padding included."""
        if not self.compressed:
            return self.record_bytes
        return -(-self.record_bytes // STREAM_ALIGNMENT_BYTES) * STREAM_ALIGNMENT_BYTES

    def chunk_range(self, index: int) -> tuple[int, int]:
        """Which original bytes chunk `index` holds: begin, end."""
        begin = index * self.chunk_bytes
        return begin, min(begin + self.chunk_bytes, self.nbytes)
