"""Writes one safetensors file of a quantised checkpoint: a few rows at a time, in threads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.errors import CheckpointError
from firelane.program.recipes import widened
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.lossless.output import OutputFile
from firelane.weights.lossless.pipeline import ordered
from firelane.weights.packing.pieces import read_piece
from firelane.weights.quantize.plan import KeptTensor, Matrix, tensors_of
from firelane.weights.quantize.report import Errors, FileReport, KeptReport, MatrixReport, sums_of
from firelane.weights.quantizing.native import quantize_library
from firelane.weights.quantizing.parts import quantize_rows
from firelane.weights.quantizing.schemes import Scheme
from firelane.weights.storage.safetensors import ITEM_BYTES

SPAN_NUMBERS = 1 << 21
"""In one task."""
SPAN_ROWS = 128
"""Rows of a matrix: one task has a multiple of these."""
ROWLESS = "weight_shape"


@dataclass(frozen=True)
class Header:
    """The first bytes of a file, and where each tensor begins in it."""

    data: bytes
    places: Mapping[str, int]
    nbytes: int


@dataclass(frozen=True)
class _Task:
    """Rows (of a kept tensor: elements) first .. last - 1."""

    entry: Matrix | KeptTensor
    first: int
    last: int


@dataclass(frozen=True)
class _Done:
    task: _Task
    data: Mapping[str, NDArray[Any]]
    """By tensor the bytes of the task's rows."""
    sums: tuple[float, float, float, float] | None = None


def make_header(entries: Sequence[Matrix | KeptTensor]) -> Header:
    """The header of a file that holds these entries, one after the other."""
    tensors: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at, offsets = 0, dict[str, int]()
    for name, part in (tensor for entry in entries for tensor in tensors_of(entry)):
        size = prod(part.shape) * ITEM_BYTES[part.dtype]
        tensors[name] = {"dtype": part.dtype, "shape": [*part.shape], "data_offsets": [at, at + size]}
        offsets[name] = at
        at += size
    text = json.dumps(tensors, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    places = {name: start + offset for name, offset in offsets.items()}
    return Header(len(text).to_bytes(8, "little") + text, places, start + at)


class FileQuantizer:
    """Quantises what one file holds. on_numbers: is called with how many more numbers are done."""

    def __init__(self, checkpoint: Checkpoint, scheme: Scheme, on_numbers: Callable[[int], None]) -> None:
        self._checkpoint, self._scheme, self._on_numbers = checkpoint, scheme, on_numbers

    def write(self, entries: Sequence[Matrix | KeptTensor], out: OutputFile, *, threads: int) -> FileReport:
        """Raises CheckpointError for weights that are not finite, OSError when the disk is full."""
        header, errors = make_header(entries), dict[str, Errors]()
        out.reserve(header.nbytes)
        out.put(0, [header.data])
        for done in ordered(self._run, _tasks(entries), threads=threads):
            for name, data in done.data.items():
                row = data.nbytes // max(1, self._steps(done.task, name))
                out.put(header.places[name] + self._first(done.task, name) * row, [data])
            if done.sums is not None and isinstance(done.task.entry, Matrix):
                errors.setdefault(done.task.entry.module, Errors()).add(done.sums)
            self._on_numbers(_numbers(done.task))
        out.finish(header.nbytes)
        return FileReport(
            matrices=[_report(e, errors[e.module]) for e in entries if isinstance(e, Matrix)],
            kept=[
                KeptReport(name=e.stored, dtype=e.dtype, why=e.why)
                for e in entries
                if isinstance(e, KeptTensor)
            ],
            nbytes=header.nbytes,
        )

    def _run(self, task: _Task) -> _Done:
        if isinstance(task.entry, KeptTensor):
            values = self._checkpoint.elements(task.entry.name, task.first, task.last)
            return _Done(task, {task.entry.stored: np.ascontiguousarray(values)})
        matrix = task.entry
        values = self._rows(matrix, task.first, task.last)
        try:
            found = quantize_rows(values, self._scheme, quantize_library())
        except ValueError:
            raise CheckpointError(
                f"{self._checkpoint.directory}: tensor {matrix.module}.weight holds NaN or infinite weights; "
                "download the model again"
            ) from None
        parts = {f"{matrix.module}.{part}": np.ascontiguousarray(data) for part, data in found.parts.items()}
        if ROWLESS in matrix.parts and task.first == 0:
            parts[f"{matrix.module}.{ROWLESS}"] = np.array(matrix.shape, np.int64)
        return _Done(task, parts, sums_of(values, found.values))

    def _rows(self, matrix: Matrix, first: int, last: int) -> NDArray[np.float32]:
        spans = matrix.weight.spans(matrix.first + first, matrix.first + last)
        return np.concatenate([widened(read_piece(self._checkpoint, piece, rows)) for piece, rows in spans])

    def _first(self, task: _Task, tensor: str) -> int:
        """The first row of a tensor that a task makes."""
        if isinstance(task.entry, KeptTensor) or not self._grows(tensor):
            return task.first
        tall = self._scheme.block[0] if self._scheme.block and tensor.endswith("weight_scale") else 1
        return task.first // tall

    def _steps(self, task: _Task, tensor: str) -> int:
        """Rows of a tensor that a task makes."""
        if isinstance(task.entry, KeptTensor) or not self._grows(tensor):
            return task.last - task.first
        tall = self._scheme.block[0] if self._scheme.block and tensor.endswith("weight_scale") else 1
        return -(-(task.last - task.first) // tall)

    @staticmethod
    def _grows(tensor: str) -> bool:
        return not tensor.endswith(ROWLESS)


def _tasks(entries: Sequence[Matrix | KeptTensor]) -> Iterator[_Task]:
    for entry in entries:
        if isinstance(entry, KeptTensor):
            size, step = prod(entry.shape), SPAN_NUMBERS
        else:
            size, step = entry.shape[0], max(1, SPAN_NUMBERS // entry.shape[1] // SPAN_ROWS) * SPAN_ROWS
        for first in range(0, size, step):
            yield _Task(entry, first, min(first + step, size))


def _numbers(task: _Task) -> int:
    width = task.entry.shape[1] if isinstance(task.entry, Matrix) else 1
    return (task.last - task.first) * width


def _report(matrix: Matrix, errors: Errors) -> MatrixReport:
    stored = sum(prod(part.shape) * ITEM_BYTES[part.dtype] for part in matrix.parts.values())
    return MatrixReport(
        name=matrix.module,
        shape=matrix.shape,
        bits=8 * stored / prod(matrix.shape),
        relative_error=errors.relative,
        largest_error=errors.largest,
    )
