"""Fingerprint of a checkpoint: what all that is made of it is cached under.

Two checkpoints can have the same names, sizes, headers and (normalised) times; so a sample of the content is
in it, too: small tensors whole, of others pages from the first to the last. It tells fine-tunes of one base
apart, which differ all over a tensor; a change of a few rows may lie between the pages: see
weights/packing/source.py.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

SAMPLE_BYTES = 4096
MOST_SAMPLES = 4
"""Samples of one tensor, at most."""
SAMPLES = 1024
"""Samples of all tensors together, about; at least one of each."""
BLOB_NAME = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")


class FileStamp(NamedTuple):
    """The file system's words about a file. While it stays the same, so does the content: the system sets the
    time of a change (ctime) whatever time a program gives the file. The device is left out: its number is
    another one each time that a container is started."""

    inode: int
    nbytes: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> FileStamp:
        return cls(stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    @property
    def is_evidence(self) -> bool:
        """Whether the time of the change is one: images with normalised times give whole seconds."""
        return self.changed_ns % 1_000_000_000 != 0


class Sampled(Protocol):
    """A file of weights. `header` names its tensors."""

    @property
    def path(self) -> Path: ...
    @property
    def stamp(self) -> FileStamp: ...
    @property
    def header(self) -> bytes: ...
    @property
    def tensors(self) -> Mapping[str, object]: ...

    def sample(self, samples: int) -> bytes:
        """A digest of so many pages of each tensor, b"" where the header has digests of the content."""
        ...


def fingerprint(files: Sequence[Sampled], *, times: bool = True) -> str:
    """The fingerprint of a checkpoint: a digest of names, sizes, times, headers, a sample of the content, and
    the hub's digest where it names one. Without `times` copies on other machines have the same one, and
    there is nothing of the hub's in it."""
    digest = hashlib.sha256()
    tensors = sum(len(file.tensors) for file in files)
    samples = max(1, min(MOST_SAMPLES, SAMPLES // max(tensors, 1)))
    for file in files:
        when = f"{file.stamp.modified_ns}:{hub_digest(file.path)}:" if times else ""
        digest.update(f"{file.path.name}:{file.stamp.nbytes}:{when}".encode())
        digest.update(hashlib.sha256(file.header).digest())
        digest.update(file.sample(samples))
    return digest.hexdigest()


def hub_digest(path: Path) -> str:
    """The content's digest where `path` is a link into the hub's cache, whose files go by it; else ""."""
    target = path.resolve()
    return target.name if target.parent.name == "blobs" and BLOB_NAME.fullmatch(target.name) else ""


def sampled_ranges(begin: int, end: int, samples: int) -> Iterator[tuple[int, int]]:
    """Parts of a tensor that lies in bytes begin .. end - 1 of its file: all of it where it is small, else
    `samples` parts of SAMPLE_BYTES at equal distances, from its beginning to its end (one: its middle).
    """
    if end - begin <= samples * SAMPLE_BYTES:
        yield begin, end
        return
    last = end - SAMPLE_BYTES
    places = [begin + (last - begin) * i // (samples - 1) for i in range(samples)] if samples > 1 else []
    for place in places or [(begin + last) // 2]:
        yield place, place + SAMPLE_BYTES
