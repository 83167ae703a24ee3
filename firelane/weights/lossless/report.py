"""The report of `pack --report`: for each tensor, what its exponents allow and what it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firelane.weights.lossless.chunks import ENTRY
from firelane.weights.lossless.control import ControlBlock
from firelane.weights.lossless.pipeline import SPAN_BYTES, ordered
from firelane.weights.lossless.planes import count_exponents
from firelane.weights.progress import Progress, silent
from firelane.weights.storage.files import weight_files
from firelane.weights.storage.safetensors import ITEM_BYTES, SafetensorsFile
from firelane.weights.storage.tensors import TensorInfo

BLOCK_ROWS = 32  # an exponent range is chosen for each block of so many output rows
CODES = 7  # values in a range
PALETTE = 16
ESCAPE_BITS = 8  # what an exponent outside the range costs beside its code


@dataclass(frozen=True, kw_only=True)
class TensorReport:
    """Shares are of the tensor's weights (0 .. 1); bits are per weight. The exponents' figures are None for
    tensors other than matrices of bf16.

    narrow, wide: share that the best range of seven exponents of each block of 32 rows covers, and the best
    one of seven pairs of exponents, 2 i and 2 i + 1, as 3-bit and 4-bit codes have it. palette: share
    that the 16 most frequent exponents of the tensor cover. bits_wide, bits_narrow: in memory, in each form.
    """

    name: str
    dtype: str
    weights: int
    bits_at_rest: float
    entropy: float | None = None
    wide: float | None = None
    narrow: float | None = None
    palette: float | None = None

    @property
    def original_bits(self) -> float:
        return 8.0 * ITEM_BYTES[self.dtype]

    @property
    def bits_wide(self) -> float:
        return self.original_bits if self.wide is None else 12 + ESCAPE_BITS * (1 - self.wide)

    @property
    def bits_narrow(self) -> float:
        return self.original_bits if self.narrow is None else 11 + ESCAPE_BITS * (1 - self.narrow)


def report(
    model_dir: Path, controls: Mapping[str, ControlBlock], *, threads: int, progress: Progress = silent
) -> list[TensorReport]:
    """All tensors of a model that was packed with these control blocks, by file name. Raises
    CheckpointError.
    """
    return [
        r
        for path in weight_files(model_dir)
        for r in _report_file(SafetensorsFile(path), controls[path.name], threads=threads, progress=progress)
    ]


def _report_file(
    source: SafetensorsFile, control: ControlBlock, *, threads: int, progress: Progress
) -> list[TensorReport]:
    matrices = {n: i for n, i in source.tensors.items() if _is_matrix(i)}
    tasks = [(n, first, last) for n, i in matrices.items() for first, last in _spans(i)]
    counts: dict[str, list[NDArray[np.int64]]] = {n: [] for n in matrices}
    done, total = 0, sum(i.end - i.begin for i in matrices.values())
    counted = ordered(lambda task: _count(source, *task), tasks, threads=threads)
    for (name, first, last), blocks in zip(tasks, counted, strict=True):
        counts[name].append(blocks)
        done += 2 * (last - first) * source.tensors[name].shape[-1]
        progress("report", done, total, "B")
    return [_report(n, i, control, counts.get(n)) for n, i in source.tensors.items()]


def range_share(blocks: NDArray[np.int64]) -> float:
    """Share of all weights that the best range of CODES adjacent values of each block covers; blocks:
    [blocks, values] counts.
    """
    sums = np.cumsum(np.pad(blocks, ((0, 0), (1, 0))), axis=1)
    return float((sums[:, CODES:] - sums[:, :-CODES]).max(axis=1).sum() / blocks.sum())


def entropy_bits(counts: NDArray[np.int64]) -> float:
    """Entropy of exponents with these counts [256], in bits."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def mean(values: Sequence[float], reports: Sequence[TensorReport]) -> float:
    """The mean over all weights of figures given for each tensor."""
    return float(np.average(values, weights=[r.weights for r in reports]))


def _is_matrix(info: TensorInfo) -> bool:
    return info.dtype == "BF16" and len(info.shape) >= 2 and info.end > info.begin


def _spans(info: TensorInfo) -> Iterator[tuple[int, int]]:
    """Rows first .. last - 1 of the tensor as a matrix [rows, last dimension], on borders of blocks."""
    rows, step = prod(info.shape[:-1]), max(1, SPAN_BYTES // (2 * BLOCK_ROWS * info.shape[-1])) * BLOCK_ROWS
    for first in range(0, rows, step):
        yield first, min(first + step, rows)


def _count(source: SafetensorsFile, name: str, first: int, last: int) -> NDArray[np.int64]:
    """Counts of exponents of these rows: [blocks, 256]."""
    tensor = source.tensor(name)
    rows = tensor.reshape(-1, tensor.shape[-1])[first:last]
    return np.stack(
        [count_exponents(rows[at : at + BLOCK_ROWS].reshape(-1)) for at in range(0, len(rows), BLOCK_ROWS)]
    )


def _report(
    name: str, info: TensorInfo, control: ControlBlock, parts: list[NDArray[np.int64]] | None
) -> TensorReport:
    table, weights = control.tables[name], prod(info.shape)
    plain = TensorReport(
        name=name,
        dtype=info.dtype,
        weights=weights,
        bits_at_rest=8 * (table.stored_bytes + ENTRY.itemsize * len(table.checksums)) / max(weights, 1),
    )
    if parts is None:
        return plain
    blocks = np.concatenate(parts)
    counts = blocks.sum(axis=0)
    return replace(
        plain,
        entropy=entropy_bits(counts),
        wide=range_share(blocks[:, 0::2] + blocks[:, 1::2]),
        narrow=range_share(blocks),
        palette=float(np.sort(counts)[-PALETTE:].sum() / counts.sum()),
    )
