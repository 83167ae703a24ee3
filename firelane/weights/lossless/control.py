"""The control block: what a packed file says about the file that it was made from. One U8 tensor in each.

    0   8   magic "firelane"                     32  16  XXH3-128 of the original file
    8   4   version                              48   8  XXH3-64 of this file's first bytes: length and header
    12  4   chunk bytes                          56   8  length h of the original header
    16  8   bytes of the original file           64   h  the original header
    24  8   number of tensors t                      t  forms, one byte a tensor, in the header's order
        then 12 bytes for each chunk of each tensor in that order, then XXH3-64 of all bytes before

Integers are little-endian; the digest of 128 bits is in its canonical (big-endian) order.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
import xxhash

from firelane.errors import CheckpointError
from firelane.weights.lossless.chunks import CHUNK_BYTES, ENTRY
from firelane.weights.lossless.marks import VERSION
from firelane.weights.lossless.table import ChunkTable, chunk_count
from firelane.weights.storage.safetensors import MAX_HEADER_BYTES, parse_header
from firelane.weights.storage.tensors import TensorInfo

MAGIC = b"firelane"
FIELDS = struct.Struct("<8sIIQQ16sQQ")
SEAL = struct.Struct("<Q")


class Form(IntEnum):
    """The form in which a tensor is stored: as it was, or (bf16) as a stream of compressed chunks."""

    PLAIN = 0
    PLANES = 1


@dataclass(frozen=True, kw_only=True)
class ControlBlock:
    """tensors: of the original file, in its header's order, begin and end counted in the original file.
    file_digest: XXH3-128 of the original file; header_digest: XXH3-64 of the packed file's length and header.
    """

    original_bytes: int
    original_header: bytes
    file_digest: bytes
    header_digest: int
    tensors: Mapping[str, TensorInfo]
    tables: Mapping[str, ChunkTable]
    chunk_bytes: int = CHUNK_BYTES

    def encode(self) -> bytes:
        tables = [self.tables[name] for name in self.tensors]
        fields = FIELDS.pack(
            MAGIC,
            VERSION,
            self.chunk_bytes,
            self.original_bytes,
            len(tables),
            self.file_digest,
            self.header_digest,
            len(self.original_header),
        )
        forms = bytes(Form.PLANES if t.compressed else Form.PLAIN for t in tables)
        content = fields + self.original_header + forms + b"".join(map(_entries, tables))
        return content + SEAL.pack(xxhash.xxh3_64_intdigest(content))

    @staticmethod
    def size(tensors: Mapping[str, TensorInfo], header_bytes: int, chunk_bytes: int) -> int:
        """Size of the encoded block, in bytes."""
        chunks = sum(chunk_count(t.end - t.begin, chunk_bytes) for t in tensors.values())
        return FIELDS.size + header_bytes + len(tensors) + ENTRY.itemsize * chunks + SEAL.size

    @classmethod
    def decode(cls, path: Path, block: bytes) -> ControlBlock:
        """Raises CheckpointError; every figure is checked before it is used."""
        fields = _checked_fields(path, block)
        _, _, chunk_bytes, original_bytes, count, file_digest, header_digest, header_bytes = fields
        header = block[FIELDS.size : FIELDS.size + header_bytes]
        tensors, _ = parse_header(path, header, data_bytes=original_bytes - 8 - header_bytes)
        if count != len(tensors) or len(block) != cls.size(tensors, header_bytes, chunk_bytes):
            raise CheckpointError(f"{path}: control block does not fit the original header; pack it again")
        forms_at = FIELDS.size + header_bytes
        entries = np.frombuffer(block[forms_at + count : -SEAL.size], ENTRY)
        tables: dict[str, ChunkTable] = {}
        at = 0
        for form, (name, info) in zip(block[forms_at : forms_at + count], tensors.items(), strict=True):
            nbytes = info.end - info.begin
            chunks = chunk_count(nbytes, chunk_bytes)
            if form not in (Form.PLAIN, Form.PLANES) or (form == Form.PLANES and info.dtype != "BF16"):
                raise CheckpointError(f"{path}: tensor {name}: {info.dtype} in form {form}; pack it again")
            try:
                tables[name] = ChunkTable.of(
                    entries[at : at + chunks],
                    nbytes=nbytes,
                    chunk_bytes=chunk_bytes,
                    compressed=form == Form.PLANES,
                )
            except ValueError as error:
                raise CheckpointError(f"{path}: tensor {name}: {error}; pack it again") from error
            at += chunks
        return cls(
            original_bytes=original_bytes,
            original_header=header,
            file_digest=file_digest,
            header_digest=header_digest,
            tensors=tensors,
            tables=tables,
            chunk_bytes=chunk_bytes,
        )


def _entries(table: ChunkTable) -> bytes:
    entries = np.empty(len(table.checksums), ENTRY)
    entries["stored_bytes"], entries["checksum"] = np.diff(table.offsets), table.checksums
    return entries.tobytes()


def _checked_fields(path: Path, block: bytes) -> tuple[bytes, int, int, int, int, bytes, int, int]:
    if len(block) < FIELDS.size + SEAL.size or block[:8] != MAGIC:
        raise CheckpointError(f"{path}: control block is not valid; download or pack it again")
    (seal,) = SEAL.unpack(block[-SEAL.size :])
    if xxhash.xxh3_64_intdigest(memoryview(block)[: -SEAL.size]) != seal:
        raise CheckpointError(f"{path}: control block is damaged; download or pack it again")
    fields = FIELDS.unpack_from(block)
    _, version, chunk_bytes, original_bytes, _, _, _, header_bytes = fields
    if version != VERSION:
        raise CheckpointError(
            f"{path}: packed in version {version}, this Firelane reads version {VERSION}; update it"
        )
    if chunk_bytes % 8 or not 8 <= chunk_bytes <= CHUNK_BYTES:
        raise CheckpointError(f"{path}: chunks of {chunk_bytes} bytes; pack it again")
    room = len(block) - FIELDS.size - SEAL.size
    if header_bytes > min(room, MAX_HEADER_BYTES) or not 8 + header_bytes <= original_bytes < 2**63:
        raise CheckpointError(f"{path}: original header of {header_bytes} bytes; pack it again")
    return fields
