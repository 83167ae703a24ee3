"""GgufFile: a GGUF file that presents tensors under the names, and in the shapes, that families know.

A quantised matrix is read as the bf16 matrix that it stands for: scale * code - minimum in float32, rounded
once to nearest even. So it gives the same bytes as the bf16 checkpoint of its dequantised weights.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from firelane.errors import CheckpointError
from firelane.program.recipes import widened
from firelane.weights.formats.bf16 import bf16_bits
from firelane.weights.formats.codes import Codes
from firelane.weights.formats.formats import Format, smallest_holding
from firelane.weights.gguf.blocks import FORMATS, decode
from firelane.weights.gguf.header import TYPES
from firelane.weights.gguf.index import File, Tensor
from firelane.weights.storage.fingerprint import FileStamp, sampled_ranges
from firelane.weights.storage.reader import DriveReader, ReadBuffer, read_ranges
from firelane.weights.storage.tensors import RowDecoder, TensorInfo

NUMBERS: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


class GgufFile(RowDecoder):
    """tensors: as the model has them; begin and end are places in the file."""

    __slots__ = ("_places", "_reader", "header", "path", "stamp", "tensors")

    def __init__(self, file: File) -> None:
        """Raises CheckpointError."""
        self.path, self.stamp = Path(file.path), file.stamp
        self._places = file.tensors
        self.tensors = {
            name: TensorInfo(dtype=t.dtype, shape=t.shape, begin=t.begin, end=t.end)
            for name, t in file.tensors.items()
        }
        try:
            self._reader = DriveReader(self.path)
            self.header = self._reader.read(0, file.header_bytes, ReadBuffer(file.header_bytes)).tobytes()
        except OSError as error:
            raise self._unreadable(error) from error

    def is_unchanged(self) -> bool:
        """Whether the file is what it was when its index was made."""
        try:
            return FileStamp.of(self.path.stat()) == self.stamp
        except OSError:
            return False

    def sample(self, samples: int) -> bytes:
        """A digest of parts of each tensor: see fingerprint.sampled_ranges()."""
        ranges = [r for t in self._places.values() for r in sampled_ranges(t.begin, t.end, samples)]
        digest = xxhash.xxh3_128()
        try:
            for piece in read_ranges(self.path, ranges, cached=not self._reader.direct):
                digest.update(piece)
        except OSError as error:
            raise self._unreadable(error) from error
        return digest.digest()

    def format(self, name: str) -> Format | None:
        """The packed format that keeps the codes of a quantised matrix; None of others."""
        tensor = self._places[name]
        found = FORMATS.get(TYPES[tensor.type].name)
        if found is None or tensor.dtype != "BF16" or tensor.minus:
            return None
        return smallest_holding([found], tensor.inputs[2], plain=True) if tensor.inputs else found

    def codes(self, name: str, low: int, high: int) -> Codes:
        """Rows low .. high - 1, all axes but the last taken together, of a matrix that has a format()."""
        tensor = self._places[name]
        kind = TYPES[tensor.type]
        taken = self._taken(tensor, low, high, tensor.shape[-1])
        with np.errstate(invalid="ignore", over="ignore"):  # the caller tells of what is not finite
            found = decode(kind.name, taken.reshape(-1, kind.nbytes)).joined(len(taken))
        if not tensor.inputs:
            return found
        minima = None if found.minima is None else _in_order(found.minima, tensor.inputs)
        return Codes(_in_order(found.codes, tensor.inputs), _in_order(found.scales, tensor.inputs), minima)

    def decoded(self, name: str, low: int, high: int) -> NDArray[Any]:
        tensor = self._places[name]
        kind, width = TYPES[tensor.type], tensor.shape[-1] if len(tensor.shape) > 1 else 1
        numbers = _numbers(kind.name, self._taken(tensor, low, high, width), kind.nbytes)
        return self._converted(_in_order(numbers, tensor.inputs), tensor)

    def _taken(self, tensor: Tensor, low: int, high: int, width: int) -> NDArray[np.uint8]:
        """The bytes of these rows: [rows, bytes]."""
        rows = stored_rows(tensor, low, high)
        kind = TYPES[tensor.type]
        first, last = (int(rows.min()), int(rows.max()) + 1) if len(rows) else (0, 0)
        row_bytes = width // kind.size * kind.nbytes
        raw = self._read(tensor.begin + first * row_bytes, (last - first) * row_bytes)
        return raw.reshape(last - first, row_bytes)[rows - first]

    def _read(self, begin: int, nbytes: int) -> NDArray[np.uint8]:
        try:
            return self._reader.read(begin, nbytes, ReadBuffer(nbytes))
        except OSError as error:
            raise self._unreadable(error) from error

    def _converted(self, values: NDArray[Any], tensor: Tensor) -> NDArray[Any]:
        """In the dtype that is promised."""
        kind = NUMBERS[tensor.dtype]
        if tensor.minus:
            values = widened(values) - np.float32(tensor.minus)
        if tensor.decay:
            with np.errstate(invalid="ignore", divide="ignore"):  # the caller tells of what is not finite
                values = np.log(-widened(values).astype(np.float64)).astype(np.float32)
        if values.dtype == kind:
            return values
        values = widened(values)
        return bf16_bits(values) if tensor.dtype == "BF16" else values.astype(kind)

    def _unreadable(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self.path}: cannot be read: {error.strerror}")


def stored_rows(tensor: Tensor, low: int, high: int) -> NDArray[np.int64]:
    """Places in the file, in rows, of rows low .. high - 1 of the model's tensor."""
    rows = np.arange(low, high)
    if not tensor.view:
        return rows
    row = np.maximum(rows - tensor.kept, 0)
    sizes = [tensor.view[axis] for axis in tensor.order]
    strides = [prod(tensor.view[axis + 1 :]) for axis in tensor.order]
    at = np.zeros_like(row)
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        row, index = np.divmod(row, size)
        at += index * stride
    return np.where(rows < tensor.kept, rows, tensor.kept + at)


def _in_order(values: NDArray[Any], inputs: tuple[int, ...]) -> NDArray[Any]:
    """Rows with their numbers, or the scales of these, in the model's order; see Tensor.inputs."""
    if not inputs:
        return values
    blocks = values.reshape(len(values), inputs[0], inputs[1], -1)
    return np.ascontiguousarray(blocks.swapaxes(1, 2)).reshape(values.shape)


def _numbers(kind: str, taken: NDArray[np.uint8], block_bytes: int) -> NDArray[Any]:
    """Rows as numbers: as they are stored where they are, else decoded into float32."""
    dtype = NUMBERS.get(kind)
    if dtype is not None:
        return np.ascontiguousarray(taken).view(dtype)
    with np.errstate(invalid="ignore", over="ignore"):  # the caller tells of what is not finite
        return decode(kind, taken.reshape(-1, block_bytes)).values().reshape(len(taken), -1)
