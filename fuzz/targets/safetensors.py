"""Files of safetensors: each tensor lies within the file and can be read, or the file is refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from firelane.errors import CheckpointError
from firelane.weights.lossless.file import open_weights
from firelane.weights.storage.fingerprint import FileStamp
from firelane.weights.storage.reader import Bytes, ReadBuffer
from firelane.weights.storage.safetensors import SafetensorsFile
from fuzz.json_mutator import mutate_json
from fuzz.target import Target


class MemoryBytes:
    """A FileBytes of bytes at hand."""

    stamp = FileStamp(1, 1, 1, 1)
    direct = False

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def nbytes(self) -> int:
        return len(self._data)

    def read(self, offset: int, nbytes: int, buffer: ReadBuffer) -> Bytes:
        out = buffer.pages[:nbytes]
        out[:] = self.take(offset, nbytes)
        return out

    def take(self, offset: int, nbytes: int, *, sparse: bool = False) -> Bytes:
        del sparse
        assert 0 <= offset <= offset + nbytes <= len(self._data), "a read leaves the file"
        return np.frombuffer(self._data, np.uint8)[offset : offset + nbytes]

    def sample(self, ranges: Sequence[tuple[int, int]]) -> bytes:
        assert all(0 <= begin <= end <= len(self._data) for begin, end in ranges)
        return b""

    def is_unchanged(self) -> bool:
        return True


def run(data: bytes) -> None:
    file = open_weights(Path("model.safetensors"), MemoryBytes(data))
    for name, info in file.tensors.items():
        try:
            assert file.tensor(name).shape == info.shape
        except CheckpointError:
            assert not isinstance(file, SafetensorsFile) or info.dtype not in ("BF16", "F16", "F32")
    file.sample(4)


def mutate(data: bytes, draw: random.Random) -> bytes | None:
    """The header changed, and its length made right."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = mutate_json(data[8:end], draw)
    return None if header is None else len(header).to_bytes(8, "little") + header + data[end:]


TARGET = Target(
    run=run,
    mutate=mutate,
    refusals=(CheckpointError,),
    words=(
        *(
            b'{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}',
            b'"__metadata__":{"format":"pt"}',
            b"F32",
        ),
        *(
            b'"shape":[',
            b'"data_offsets":[',
            b"F8_E4M3",
            b"BOOL",
            b"9223372036854775807",
            b"\\ud800",
            b"{{{{{{",
        ),
        *(b"firelane-lossless", b"firelane_lossless.control"),
    ),
)
