"""The original file's bytes, again: what unpack writes and verify checks."""

from __future__ import annotations

from collections.abc import Iterator

from firelane.weights.lossless.file import LosslessFile
from firelane.weights.lossless.pipeline import ordered, spans
from firelane.weights.lossless.planes import Bytes


def original_bytes(file: LosslessFile, *, threads: int) -> Iterator[bytes | Bytes]:
    """The file that was packed, from its first byte to its last, in pieces of a few MiB.

    Raises CheckpointError at the first damaged chunk. Chunks are checked here, the whole is for the caller:
    its digest is file.control.file_digest.
    """
    yield file.original_prefix
    by_place = sorted(file.tensors.items(), key=lambda item: (item[1].begin, item[1].end))
    tasks = (
        (name, begin, end)
        for name, info in by_place
        for begin, end in spans(info.end - info.begin, file.control.chunk_bytes)
    )
    workers = 2 * threads if file.waits_for_drive else threads
    yield from ordered(lambda task: file.read(*task), tasks, threads=workers)
