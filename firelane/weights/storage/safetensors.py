"""A strict reader of the safetensors format (github.com/huggingface/safetensors, "Format").

    8 bytes   header length n, little-endian n bytes   JSON: {"name": {"dtype": …, "shape": [...],
    "data_offsets": [begin, end]}, …, "__metadata__": {...}} the rest  the tensors' bytes, row-major,
    little-endian, without holes

Every figure in the header is checked against the file before a tensor is handed out, so no read can leave the
file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from firelane.errors import CheckpointError
from firelane.weights.storage.file_bytes import LEAST_BYTES, FileBytes, LocalBytes
from firelane.weights.storage.fingerprint import FileStamp, sampled_ranges
from firelane.weights.storage.reader import ReadBuffer
from firelane.weights.storage.tensors import TensorInfo, TensorReader

MAX_HEADER_BYTES = 100_000_000
MAX_DIMENSIONS = 8
ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
NUMPY_DTYPES: dict[str, type[np.generic]] = {
    "F32": np.float32, "F16": np.float16, "BF16": np.uint16, "F8_E4M3": np.uint8,
    "U8": np.uint8, "I8": np.int8, "I32": np.int32, "I64": np.int64,
}  # fmt: skip


class SafetensorsFile(TensorReader):
    """One file. Tensors handed out are read-only, views of a mapping where it lies on a drive. `reader` reads
    any of its bytes.
    """

    __slots__ = ("header", "metadata", "path", "reader", "tensors")

    def __init__(self, path: Path, source: FileBytes | None = None) -> None:
        """source: where its bytes are read, None: from `path`. Raises CheckpointError naming the file, and
        the tensor where one is at fault.
        """
        self.path = path
        self.reader: FileBytes = LocalBytes(path) if source is None else source
        self.header = _header_bytes(path, self.reader)
        data_bytes = self.reader.nbytes - 8 - len(self.header)
        self.tensors, self.metadata = parse_header(path, self.header, data_bytes=data_bytes)

    @property
    def nbytes(self) -> int:
        return self.reader.nbytes

    @property
    def stamp(self) -> FileStamp:
        return self.reader.stamp

    def elements(
        self, name: str, first: int, last: int, buffer: ReadBuffer | None = None, *, sparse: bool = False
    ) -> NDArray[Any]:
        dtype = self._dtype(name)
        begin, nbytes = self.tensors[name].begin + first * dtype.itemsize, (last - first) * dtype.itemsize
        if buffer is None or sparse:
            return self.reader.take(begin, nbytes, sparse=sparse).view(dtype)
        data = self.reader.read(begin, nbytes, buffer)
        data.flags.writeable = False
        return data.view(dtype)

    def sample(self, samples: int) -> bytes:
        """A digest of parts of each tensor: see fingerprint.sampled_ranges()."""
        infos = self.tensors.values()
        return self.reader.sample([r for i in infos for r in sampled_ranges(i.begin, i.end, samples)])

    def is_unchanged(self) -> bool:
        return self.reader.is_unchanged()

    def _dtype(self, name: str) -> np.dtype[Any]:
        dtype = self.tensors[name].dtype
        if dtype not in NUMPY_DTYPES:
            raise CheckpointError(f"{self.path}: tensor {name} has dtype {dtype}; bf16, f16 or f32 is needed")
        return np.dtype(NUMPY_DTYPES[dtype])


def _header_bytes(path: Path, reader: FileBytes) -> bytes:
    if reader.nbytes < LEAST_BYTES:
        raise CheckpointError(f"{path}: too short for a safetensors file; download it again")
    length = int.from_bytes(reader.take(0, 8).tobytes(), "little")
    if length > MAX_HEADER_BYTES or length > reader.nbytes - 8:
        raise CheckpointError(
            f"{path}: header of {length} bytes in a file of {reader.nbytes}: "
            "truncated or not safetensors; download it again"
        )
    return reader.take(8, length).tobytes()


def parse_header(
    path: Path, header: bytes, *, data_bytes: int
) -> tuple[dict[str, TensorInfo], dict[str, Any]]:
    """The tensors that a header names, in its order, and its metadata ({} without any); `data_bytes` follow
    the header. Raises CheckpointError.
    """
    entries = _load_json(path, header)
    metadata = entries.pop("__metadata__", {})
    start = 8 + len(header)
    tensors = {name: _tensor_info(path, name, entry, start) for name, entry in entries.items()}
    _check_tiling(path, tensors, start=start, end=start + data_bytes)
    return tensors, cast(dict[str, Any], metadata) if isinstance(metadata, dict) else {}


def _load_json(path: Path, header: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(header.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: header is not valid: {error}") from error
    if not isinstance(entries, dict):
        raise CheckpointError(f"{path}: header is not a JSON object")
    return cast(dict[str, Any], entries)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"{twice[:80]!r} stands there twice")
    return entries


def _tensor_info(path: Path, name: str, entry: Any, start: int) -> TensorInfo:
    if not isinstance(entry, dict):
        raise CheckpointError(f"{path}: tensor {name}: its header entry is not an object")
    fields = cast(dict[str, Any], entry)
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise CheckpointError(f"{path}: tensor {name}: unknown dtype {str(dtype)[:40]!r}")
    if not _are_counts(shape) or len(shape) > MAX_DIMENSIONS:
        raise CheckpointError(f"{path}: tensor {name}: shape {str(shape)[:60]} is not valid")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{path}: tensor {name}: data_offsets {str(offsets)[:60]} are not valid")
    if prod(shape) * ITEM_BYTES[dtype] != offsets[1] - offsets[0]:
        raise CheckpointError(
            f"{path}: tensor {name}: {dtype} {list(shape)} does not fill data_offsets {list(offsets)}"
        )
    return TensorInfo(dtype=dtype, shape=tuple(shape), begin=start + offsets[0], end=start + offsets[1])


def _are_counts(numbers: Any) -> TypeGuard[list[int]]:
    """A list of integers >= 0 (and below 2^63, so that no later sum can surprise)."""
    return isinstance(numbers, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**63
        for n in cast(Sequence[Any], numbers)
    )


def _check_tiling(path: Path, tensors: dict[str, TensorInfo], *, start: int, end: int) -> None:
    """Tensors fill the file from the header's end to its last byte, without holes or overlaps."""
    at = start
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if info.end > end:
            raise CheckpointError(
                f"{path}: tensor {name} ends at byte {info.end} of {end}: "
                "the file is truncated; download it again"
            )
        if info.begin != at:
            what = "overlaps another" if info.begin < at else "leaves a hole before it"
            raise CheckpointError(
                f"{path}: tensor {name} {what}: its data starts at byte {info.begin}, not {at}"
            )
        at = info.end
    if at != end:
        raise CheckpointError(f"{path}: {end - at} bytes after the last tensor; download it again")
