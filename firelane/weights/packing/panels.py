"""Runs of panels from rows of the checkpoint's tensors: by compiled code, or in NumPy where there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.weights.formats.coded import Bytes, encode
from firelane.weights.formats.coded_native import NUMBERS, CodedLibrary
from firelane.weights.formats.formats import PANEL_ROWS, Format, round_up, to_panels


@dataclass(frozen=True, kw_only=True)
class Run:
    """The rows of some panels: packed row i is row `row[i]` of spans[part[i]], or zeros where part[i] is -1.

    spans: [rows, k] each, all uint16 (bits of bf16) or all float32.
    """

    spans: tuple[NDArray[Any], ...]
    part: NDArray[np.int64]
    row: NDArray[np.int64]

    @property
    def k(self) -> int:
        return self.spans[0].shape[1]

    def stacked(self) -> NDArray[Any]:
        """The packed rows, [rows, k rounded up to even], with zeros for padding."""
        rows = np.zeros((len(self.part), round_up(self.k, 2)), self.spans[0].dtype)
        for number, span in enumerate(self.spans):
            here = self.part == number
            rows[here, : self.k] = span[self.row[here]]
        return rows


def encode_run(run: Run, format_: Format, out: Bytes, library: CodedLibrary | None) -> NDArray[np.uint64]:
    """Write the panels of `run` to `out`, which has room for the largest that they may be; returns where
    each of them ends. ValueError where a weight is not finite.
    """
    if library is not None and format_ in NUMBERS:
        return _encode_compiled(run, format_, out, library)
    rows = run.stacked()
    if not is_finite(rows):
        raise ValueError("a weight is not finite")
    panels = to_panels(rows)
    if format_.is_coded:
        data, table = encode(panels, format_)
        out[: len(data)] = data
        return table[1:]
    out[: panels.nbytes].view(panels.dtype).reshape(panels.shape)[:] = panels
    return np.arange(1, len(panels) + 1, dtype=np.uint64) * np.uint64(panels.nbytes // len(panels))


def is_finite(values: NDArray[Any]) -> bool:
    """Whether all floats are finite; uint16 hold bits of bf16."""
    if values.dtype == np.uint16:
        return int((values & 0x7FFF).max(initial=0)) < 0x7F80
    return bool(np.isfinite(values).all())


def _encode_compiled(run: Run, format_: Format, out: Bytes, library: CodedLibrary) -> NDArray[np.uint64]:
    assert len(run.part) % PANEL_ROWS == 0
    spans = [np.ascontiguousarray(span) for span in run.spans]
    zeros = np.zeros(run.k, np.uint16)
    starts = np.array([*(span.ctypes.data for span in spans), zeros.ctypes.data], np.uint64)
    row = np.where(run.part < 0, 0, run.row).astype(np.uint64)
    addresses = starts[run.part] + row * np.uint64(zeros.nbytes)  # part -1: the zeros
    return library.encode(format_, addresses, run.k, out)
