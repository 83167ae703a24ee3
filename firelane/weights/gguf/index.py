"""Index of a checkpoint in GGUF files: which of a model's tensors lie where, under the names that families
know. It is written once, beside the converted config and tokenizer, so that later starts read no header."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from firelane.errors import CacheError, CheckpointError
from firelane.storage import open_regular
from firelane.weights.gguf.header import GgufHeader, read_header
from firelane.weights.storage import checked_json
from firelane.weights.storage.files import GGUF_INDEX
from firelane.weights.storage.fingerprint import FileStamp

VERSION = 2


class Tensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tensor of the model.

    stored, type, begin, end: its name in the file, its type there, and its bytes. shape: as the model has it;
    all axes but the last are rows. view, order: of the rows behind the first `kept`, if they lie in another
    order: where row i of the model is found, after the rows of the file, seen as `view`, have their axes in
    `order`. inputs: (m, n, size) where the file has blocks of `size` inputs as [m, n], and the model as
    [n, m]. minus: taken from each number. decay: whether -exp(number) is stored. dtype: of what is read, as
    safetensors names it.
    """

    stored: str
    type: int
    begin: int
    end: int
    shape: tuple[int, ...]
    dtype: str
    view: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    kept: int = 0
    inputs: tuple[int, ...] = ()
    minus: float = 0.0
    decay: bool = False


class File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """path: absolute. header: of so many bytes."""

    path: str
    stamp: FileStamp
    header_bytes: int
    tensors: dict[str, Tensor]


class Index(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    files: list[File]

    @property
    def is_current(self) -> bool:
        """Whether the files are what they were when the index was made."""
        try:
            stamps = [FileStamp.of(Path(file.path).stat()) for file in self.files]
        except OSError:
            return False
        return self.version == VERSION and stamps == [file.stamp for file in self.files]


def read_index(directory: Path) -> Index | None:
    """None where there is no valid one."""
    return checked_json.read(directory / GGUF_INDEX, Index)


def write_index(directory: Path, index: Index) -> None:
    """Raises CacheError."""
    try:
        checked_json.write(directory / GGUF_INDEX, index)
    except OSError as error:
        raise CacheError(f"{directory}: cannot be written: {error.strerror}; make room") from error


@dataclass(frozen=True)
class OpenedFile:
    """A file's header, and its stamp when that was read."""

    path: Path
    stamp: FileStamp
    header: GgufHeader


def open_header(path: Path) -> OpenedFile:
    """Raises CheckpointError."""
    with mapped(path) as (data, stamp):
        return OpenedFile(path.resolve(), stamp, read_header(path, data))


@contextlib.contextmanager
def mapped(path: Path) -> Generator[tuple[memoryview, FileStamp]]:
    """All bytes of the file, and its stamp. Raises CheckpointError."""
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            if not status.st_size:
                raise CheckpointError(f"{path}: is empty; download it again")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    with data, memoryview(data) as view:
        yield view, FileStamp.of(status)
