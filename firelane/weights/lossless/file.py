"""LosslessFile: a packed safetensors file that presents the tensors of the file that it was made from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from firelane.errors import CheckpointError
from firelane.weights.lossless.chunks import CHUNK_BYTES, FRAME_OVERHEAD_BYTES, decode_chunk
from firelane.weights.lossless.control import ControlBlock, Form
from firelane.weights.lossless.marks import CONTROL, FORMAT, STREAM_SUFFIX, VERSION, is_packed
from firelane.weights.lossless.planes import Bytes
from firelane.weights.lossless.table import ChunkTable
from firelane.weights.storage.file_bytes import FileBytes
from firelane.weights.storage.reader import ReadBuffer
from firelane.weights.storage.safetensors import ITEM_BYTES, NUMPY_DTYPES, SafetensorsFile
from firelane.weights.storage.tensors import TensorInfo, TensorReader

READ_BYTES = 1 << 20  # at a time: enough for a drive, and the buffer stays in the CPU's cache


def open_weights(path: Path, source: FileBytes | None = None) -> SafetensorsFile | LosslessFile:
    """The file at `path`, or whose bytes are in `source`, whichever kind it is. Raises CheckpointError."""
    file = SafetensorsFile(path, source)
    return LosslessFile(file) if is_packed(file) else file


class LosslessFile(TensorReader):
    """Every chunk is checked when it is read. Where the file comes from a drive, more threads than cores are
    of use: some wait for it while others decode.

    tensors: names, dtypes and shapes as in the original file; begin and end are places in that file.
    header: what the fingerprint of a checkpoint is made from.
    """

    __slots__ = ("_reader", "_stored", "control", "header", "path", "stamp", "tensors")
    is_sampled = False

    def __init__(self, file: SafetensorsFile) -> None:
        """Raises CheckpointError where anything but the chunks themselves is damaged."""
        self.path, self.stamp = file.path, file.stamp
        self._reader: FileBytes = file.reader
        block = self._control_block(file)
        self.control = ControlBlock.decode(self.path, block)
        digest = xxhash.xxh3_64_intdigest(len(file.header).to_bytes(8, "little") + file.header)
        if self.control.header_digest != digest:
            raise CheckpointError(f"{file.path}: header is damaged; download or pack it again")
        self.header = file.header + block
        self.tensors = self.control.tensors
        self._stored = _stored_tensors(file, self.control)

    @property
    def waits_for_drive(self) -> bool:
        """Whether the file was not in the page cache when it was opened."""
        return self._reader.direct

    @property
    def original_prefix(self) -> bytes:
        """The original file's first bytes: its header's length and the header."""
        header = self.control.original_header
        return len(header).to_bytes(8, "little") + header

    def sample(self, samples: int) -> bytes:  # noqa: ARG002 - there is nothing to choose
        """b"": the control block, which is in `header`, has checksums of all chunks."""
        return b""

    def is_unchanged(self) -> bool:
        return self._reader.is_unchanged()

    def table(self, name: str) -> ChunkTable:
        return self.control.tables[name]

    def elements(
        self,
        name: str,
        first: int,
        last: int,
        buffer: ReadBuffer | None = None,
        *,
        sparse: bool = False,  # noqa: ARG002 - whole chunks are decoded all the same
    ) -> NDArray[Any]:
        """Elements first .. last - 1 of the flat tensor, decoded into `buffer` if there is one; only the
        chunks that they lie in are read.
        """
        item = ITEM_BYTES[self.tensors[name].dtype]
        out = None if buffer is None else buffer.pages[: (last - first) * item]
        return self._array(name, first * item, last * item, out)

    def read(self, name: str, begin: int, end: int, out: Bytes | None = None) -> Bytes:
        """Original bytes begin .. end - 1 of a tensor, both even for bf16, in `out` if it is given. Raises
        CheckpointError.
        """
        table = self.table(name)
        if out is None:
            out = np.empty(end - begin, np.uint8)
        for chunk, record in self._records(name, begin, end):
            low, high = table.chunk_range(chunk)
            whole = begin <= low and high <= end
            target = out[low - begin : high - begin] if whole else np.empty(high - low, np.uint8)
            expected = int(table.checksums[chunk])
            try:
                decode_chunk(record, target, compressed=table.compressed, expected=expected)
            except ValueError as error:
                raise CheckpointError(
                    f"{self.path}: tensor {name}, chunk {chunk}: {error}; download or pack it again"
                ) from error
            if not whole:
                first, last = max(low, begin), min(high, end)
                out[first - begin : last - begin] = target[first - low : last - low]
        return out

    def _array(self, name: str, begin: int, end: int, out: Bytes | None = None) -> NDArray[Any]:
        dtype = self.tensors[name].dtype
        if dtype not in NUMPY_DTYPES:
            raise CheckpointError(f"{self.path}: tensor {name} has dtype {dtype}; bf16, f16 or f32 is needed")
        return self.read(name, begin, end, out).view(NUMPY_DTYPES[dtype])

    def _records(self, name: str, begin: int, end: int) -> Iterator[tuple[int, Bytes]]:
        """The chunks that bytes begin .. end - 1 lie in, with their records; a record is valid until the
        next.
        """
        if begin == end:
            return
        table, place = self.table(name), self._stored[name].begin
        offsets = table.offsets
        chunk, stop = begin // table.chunk_bytes, (end - 1) // table.chunk_bytes + 1
        longest = READ_BYTES + CHUNK_BYTES + FRAME_OVERHEAD_BYTES
        buffer = ReadBuffer(min(longest, int(offsets[stop] - offsets[chunk])))
        while chunk < stop:
            start = int(offsets[chunk])
            after = min(int(np.searchsorted(offsets, start + READ_BYTES, side="left")), stop)
            piece = self._reader.read(place + start, int(offsets[after]) - start, buffer)
            for i in range(chunk, after):
                yield i, piece[int(offsets[i]) - start : int(offsets[i + 1]) - start]
            chunk = after

    def _control_block(self, file: SafetensorsFile) -> bytes:
        version = file.metadata.get("version")
        if file.metadata.get("format") != FORMAT:
            raise CheckpointError(f"{file.path}: parts of a packed file, but no packed file; pack it again")
        if version != str(VERSION):
            raise CheckpointError(
                f"{file.path}: packed in version {str(version)[:20]!r}, this Firelane reads version "
                f"{VERSION}; update it"
            )
        info = file.tensors.get(CONTROL)
        if info is None or info.dtype != "U8":
            raise CheckpointError(f"{file.path}: control block is missing; download or pack it again")
        size = info.end - info.begin
        return self._reader.read(info.begin, size, ReadBuffer(size)).tobytes()


def stored_name(name: str, form: Form) -> str:
    """Under which name a tensor stands in a packed file."""
    return name + STREAM_SUFFIX if form is Form.PLANES else name


def _stored_tensors(file: SafetensorsFile, control: ControlBlock) -> dict[str, TensorInfo]:
    """The place of each original tensor. Raises CheckpointError where header and control block disagree."""
    found: dict[str, TensorInfo] = {}
    for name, info in control.tensors.items():
        table = control.tables[name]
        under = stored_name(name, Form.PLANES if table.compressed else Form.PLAIN)
        stored = file.tensors.get(under)
        dtype, shape = ("U8", (table.stored_bytes,)) if table.compressed else (info.dtype, info.shape)
        if stored is None or under == CONTROL or (stored.dtype, stored.shape) != (dtype, shape):
            raise CheckpointError(
                f"{file.path}: {under} is missing or not {dtype} {list(shape)}; download or pack it again"
            )
        found[name] = stored
    if len(file.tensors) != len(found) + 1:
        extra = set(file.tensors) - {CONTROL} - {stored_name(n, f) for n in found for f in Form}
        what = min(extra) if extra else "a tensor that stands there twice"
        raise CheckpointError(
            f"{file.path}: {what} is not part of what was packed; download or pack it again"
        )
    return found
