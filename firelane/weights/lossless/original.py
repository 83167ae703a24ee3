"""The original file's bytes, again: what unpack writes and verify checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import xxhash

from firelane.errors import CheckpointError
from firelane.weights.lossless.file import PackedFile
from firelane.weights.lossless.pipeline import ordered, spans
from firelane.weights.lossless.planes import Bytes


def original_bytes(file: PackedFile, *, threads: int) -> Iterator[bytes | Bytes]:
    """The file that was packed, from its first byte to its last, in pieces of a few MiB.

    Raises CheckpointError at the first damaged chunk, and at the end where the whole has another digest than
    the original had.
    """
    digest = xxhash.xxh3_128(file.original_prefix)
    yield file.original_prefix
    by_place = sorted(file.tensors.items(), key=lambda item: (item[1].begin, item[1].end))
    tasks = (
        (name, begin, end)
        for name, info in by_place
        for begin, end in spans(info.end - info.begin, file.control.chunk_bytes)
    )
    for piece in ordered(lambda task: file.read(*task), tasks, threads=threads):
        digest.update(piece.data)
        yield piece
    if digest.digest() != file.control.file_digest:
        raise CheckpointError(f"{file.path}: decodes to another file than was packed; pack it again")


def verify_file(file: PackedFile, on_bytes: Callable[[int], None], *, threads: int) -> None:
    """Decode everything, keep nothing. Raises CheckpointError."""
    for piece in original_bytes(file, threads=threads):
        on_bytes(len(piece))
