"""Chunks: the unit in which weights are stored, checked and decoded, each independent of the others.

A chunk holds up to CHUNK_BYTES of a tensor's original bytes (the last of a tensor may be shorter). Its
record:

    compressed (bf16)   n bytes mantissa << 1 | sign, then one Zstandard frame (RFC 8878) of n exponents
    plain               the original bytes

and its checksum is XXH3-64 of the original bytes, so that it covers all that a decoder makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
import zstandard
from numpy.typing import NDArray

from firelane.weights.lossless.planes import Bits, Bytes, merge, split

CHUNK_BYTES = 1 << 18
# A frame of incompressible exponents is this much longer than they are, at most: they are one block, or two.
FRAME_OVERHEAD_BYTES = 64
ENTRY = np.dtype([("stored_bytes", "<u4"), ("checksum", "<u8")])

# One block of 128 KiB a frame and a match finder that finds next to nothing: what is left of Zstandard is its
# Huffman stage in four streams. Matches would cost bits and speed (benchmarks/entropy_coders.py).
PARAMETERS: dict[str, int] = {
    "strategy": zstandard.STRATEGY_FAST,
    "window_log": 17,
    "hash_log": 6,
    "chain_log": 6,
    "search_log": 1,
    "min_match": 7,
    "target_length": 0,
    "write_checksum": 0,
}


@dataclass(frozen=True)
class Record:
    """A stored chunk: its buffers one after the other, and its entry in the chunk table."""

    buffers: tuple[Any, ...]
    stored_bytes: int
    checksum: int


def checksum(data: NDArray[Any]) -> int:
    """XXH3-64, seed 0."""
    return xxhash.xxh3_64_intdigest(data.data)


class ChunkEncoder:
    """Encodes one chunk at a time; one for each thread."""

    __slots__ = ("_compressor",)

    def __init__(self) -> None:
        parameters = zstandard.ZstdCompressionParameters(**PARAMETERS)
        self._compressor = zstandard.ZstdCompressor(compression_params=parameters)

    def encode(self, bits: Bits) -> Record:
        """The compressed record of bits [n], n > 0."""
        sign_mantissa, exponent = np.empty(len(bits), np.uint8), np.empty(len(bits), np.uint8)
        split(bits, sign_mantissa, exponent)
        frame = self._compressor.compress(exponent.data)
        return Record((sign_mantissa, frame), len(bits) + len(frame), checksum(bits))


def plain_record(data: Bytes) -> Record:
    return Record((data,), len(data), checksum(data))


class ChunkDecoder:
    """Decodes one chunk at a time; one for each thread. Raises ValueError saying what is wrong with a
    chunk.
    """

    __slots__ = ("_decompressor",)

    def __init__(self) -> None:
        # The window bounds what a lying frame can make the library allocate.
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=CHUNK_BYTES)

    def decode(self, record: Bytes, out: Bytes, *, compressed: bool, expected: int) -> None:
        """Write the original bytes of `record` to out [n] (aligned for uint16 where compressed) and check
        them against the `expected` checksum.
        """
        if compressed:
            self._decode_planes(record, out.view(np.uint16))
        elif len(record) == len(out):
            out[:] = record
        else:
            raise ValueError(f"{len(record)} bytes are stored for {len(out)}")
        if checksum(out) != expected:
            raise ValueError("the checksum is wrong")

    def _decode_planes(self, record: Bytes, bits: Bits) -> None:
        n = len(bits)
        exponent = self._exponents(record[n:], n)
        merge(record[:n], exponent, bits)

    def _exponents(self, frame: Bytes, n: int) -> Bytes:
        try:
            # Before anything is allocated: the frame must promise n bytes.
            if zstandard.get_frame_parameters(frame.data).content_size != n:
                raise ValueError(f"the frame does not hold {n} exponents")
            content = self._decompressor.decompress(frame.data, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise ValueError(f"the frame is damaged: {error}") from error
        if len(content) != n:
            raise ValueError(f"the frame does not hold {n} exponents")
        return np.frombuffer(content, np.uint8)
