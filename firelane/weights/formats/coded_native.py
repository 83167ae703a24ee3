"""The compiled encoders of panels (csrc/coded.cpp, csrc/grouped.cpp): built once for a machine, or absent
where there is no compiler.
"""

from __future__ import annotations

import ctypes as ct
import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firelane import env
from firelane.errors import CacheError, CompilerError
from firelane.native.library import build_library, declared
from firelane.weights.formats import grouped
from firelane.weights.formats.codes import Codes
from firelane.weights.formats.formats import PANEL_ROWS, Format, Heads

SOURCES = Path(__file__).parent.parent / "csrc"
NUMBERS = {Format.PANEL_BF16: 0, Format.PANEL_CODED4: 1, Format.PANEL_CODED3: 2}


class _Groups(ct.Structure):
    _fields_ = (
        *((name, ct.c_int32) for name in ("bits", "offset", "word_steps")),
        *((name, ct.c_size_t) for name in ("k", "span", "panels", "heads")),
    )


class _Head(ct.Structure):
    _fields_ = (("numbers", ct.c_void_p), ("size", ct.c_size_t), ("count", ct.c_size_t))


class CodedLibrary:
    """Compiled functions, with what is handed over checked here. The GIL is released during a call."""

    __slots__ = ("_count", "_encode", "_encode_groups")

    def __init__(self, path: Path) -> None:
        library = ct.CDLL(str(path))
        pointer, size = ct.c_void_p, ct.c_size_t
        arguments = ct.c_int32, pointer, size, size, pointer, pointer
        self._encode = declared(library.firelane_encode_panels, size, *arguments)
        self._encode_groups = declared(library.firelane_encode_groups, None, *(pointer,) * 6)
        self._count = declared(library.firelane_count_exponents, None, pointer, size, pointer)

    def encode_groups(
        self, format_: Format, codes: Codes, rows: NDArray[np.int64], out: NDArray[np.uint8]
    ) -> int:
        """Panels of rows of these codes, fitted() to the format, at the beginning of `out`; -1 is a row of
        zeros. Returns how many bytes they take. ValueError as grouped.encode().
        """
        grouping, (height, k) = format_.grouping, codes.codes.shape
        assert grouping is not None
        assert not len(rows) % PANEL_ROWS
        assert not k % grouping.span
        assert rows.min(initial=0) >= -1
        assert rows.max(initial=-1) < height
        panels, spans = len(rows) // PANEL_ROWS, k // grouping.span
        nbytes = panels * grouped.panel_bytes(format_, k)
        assert nbytes <= len(out)
        numbers = [np.ascontiguousarray(head) for head in grouped.stored_heads(codes, grouping)]
        heads = [_Head(n.ctypes.data, n.itemsize, n.shape[1] // spans) for n in numbers]
        stored, taken = grouped.stored_codes(codes.codes, grouping), np.ascontiguousarray(rows, np.int64)
        stored = np.ascontiguousarray(stored)
        zeros = grouped.stored_codes(np.zeros(grouping.span, np.int8), grouping)
        word_steps = 4 if grouping.heads is Heads.POWER else 8
        offset = grouped.code_offset(grouping)
        self._encode_groups(
            ct.byref(_Groups(grouping.bits, offset, word_steps, k, grouping.span, panels, len(heads))),
            (_Head * len(heads))(*heads),
            *(array.ctypes.data for array in (taken, stored, zeros, out)),
        )
        return nbytes

    def encode(
        self, format_: Format, rows: NDArray[np.uint64], k: int, out: NDArray[np.uint8]
    ) -> NDArray[np.uint64]:
        """Panels of bf16 rows, one behind the other in `out`, which has room for the largest that they may
        be. rows: the addresses of their rows, of k words each. Returns where each panel ends. ValueError
        where a weight is not finite.
        """
        panels = len(rows) // PANEL_ROWS
        assert len(rows) == panels * PANEL_ROWS
        assert k % format_.k_multiple == 0
        assert out.flags.c_contiguous
        assert rows.flags.c_contiguous
        ends = np.empty(panels, np.uint64)
        done: int = self._encode(
            NUMBERS[format_], rows.ctypes.data, panels, k, out.ctypes.data, ends.ctypes.data
        )
        if done < panels:
            raise ValueError("a weight is not finite")
        return ends

    def count(self, words: NDArray[np.uint16], counts: NDArray[np.int64]) -> None:
        """Adds to counts [512] how often each sign-and-exponent (word >> 7) occurs in `words`."""
        assert words.flags.c_contiguous
        assert (words.dtype, counts.dtype) == (np.uint16, np.int64)
        assert counts.shape == (512,)
        self._count(words.ctypes.data, words.size, counts.ctypes.data)


def build(cache_dir: Path, settings: env.Environment, isa: str) -> CodedLibrary:
    """Compile for `isa` ("": the best here), or find it compiled. Raises CompilerError, CacheError,
    UsageError."""
    sources = [SOURCES / name for name in ("coded.cpp", "grouped.cpp")]
    path = build_library("the encoder of panels", sources, replace(settings, isa=isa), cache_dir)
    return CodedLibrary(path)


@functools.cache
def coded_library() -> CodedLibrary | None:
    """For this machine, or None where it cannot be compiled or kept. UsageError as env.read()."""
    settings = env.read()
    try:
        return build(settings.cache_dir, settings, settings.isa)
    except (CompilerError, CacheError, OSError):
        return None
