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
from numpy.typing import NDArray

from firelane.weights.lossless.planes import Bits, Bytes, merge, split
from firelane.weights.lossless.zstd import zstd

CHUNK_BYTES = 1 << 18
# A frame of incompressible exponents is this much longer than they are, at most: they are one block, or two.
FRAME_OVERHEAD_BYTES = 64
ENTRY = np.dtype([("stored_bytes", "<u4"), ("checksum", "<u8")])

# One block of 128 KiB a frame and a match finder that finds next to nothing: what is left of Zstandard is its
# Huffman stage in four streams. Matches would cost bits and speed (benchmarks/entropy_coders.py).
_OPTION = zstd.CompressionParameter
PARAMETERS: dict[int, int] = {
    _OPTION.strategy: zstd.Strategy.fast,
    _OPTION.window_log: 17,
    _OPTION.hash_log: 6,
    _OPTION.chain_log: 6,
    _OPTION.search_log: 1,
    _OPTION.min_match: 7,
    _OPTION.target_length: 0,
    _OPTION.checksum_flag: 0,
}
# The window bounds what a lying frame can make the library allocate.
_LIMITS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: CHUNK_BYTES.bit_length() - 1}


@dataclass(frozen=True)
class ChunkRecord:
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
        self._compressor = zstd.ZstdCompressor(options=PARAMETERS)

    def encode(self, bits: Bits) -> ChunkRecord:
        """The compressed record of bits [n], n > 0."""
        sign_mantissa, exponent = np.empty(len(bits), np.uint8), np.empty(len(bits), np.uint8)
        split(bits, sign_mantissa, exponent)
        self._compressor.set_pledged_input_size(len(exponent))
        frame = self._compressor.compress(exponent.data, zstd.ZstdCompressor.FLUSH_FRAME)
        return ChunkRecord((sign_mantissa, frame), len(bits) + len(frame), checksum(bits))


def plain_record(data: Bytes) -> ChunkRecord:
    return ChunkRecord((data,), len(data), checksum(data))


def decode_chunk(record: Bytes, out: Bytes, *, compressed: bool, expected: int) -> None:
    """Write the original bytes of `record` to out [n] (aligned for uint16 where compressed) and check them
    against the `expected` checksum. Raises ValueError saying what is wrong with the chunk.
    """
    if compressed:
        _decode_planes(record, out.view(np.uint16))
    elif len(record) == len(out):
        out[:] = record
    else:
        raise ValueError(f"{len(record)} bytes are stored for {len(out)}")
    if checksum(out) != expected:
        raise ValueError("the checksum is wrong")


def _decode_planes(record: Bytes, bits: Bits) -> None:
    n = len(bits)
    exponent = _exponents(record[n:], n)
    merge(record[:n], exponent, bits)


def _exponents(frame: Bytes, n: int) -> Bytes:
    try:
        # Before anything is allocated: the frame must promise n bytes.
        if zstd.get_frame_info(frame.data).decompressed_size != n:
            raise ValueError(f"the frame does not hold {n} exponents")
        decompressor = zstd.ZstdDecompressor(options=_LIMITS)
        content = decompressor.decompress(frame.data, max_length=n)
    except zstd.ZstdError as error:
        raise ValueError(f"the frame is damaged: {error}") from error
    if len(content) != n or not decompressor.eof or decompressor.unused_data:
        raise ValueError(f"the frame does not hold {n} exponents and nothing else")
    return np.frombuffer(content, np.uint8)
