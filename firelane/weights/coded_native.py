"""The compiled encoder of panels (csrc/coded.cpp): built once for a machine, or absent where there is no
compiler.
"""

from __future__ import annotations

import ctypes as ct
import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane import env
from firelane.errors import CacheError, CompilerError
from firelane.native import machine, toolchain
from firelane.native.target import find_target
from firelane.weights.formats import PANEL_ROWS, Format

SOURCES = Path(__file__).parent / "csrc"
NUMBERS = {Format.PANEL_BF16: 0, Format.PANEL_CODED4: 1, Format.PANEL_CODED3: 2}


class CodedLibrary:
    """csrc/coded.cpp; what is handed over is checked here. The GIL is released during a call."""

    __slots__ = ("_count", "_encode")

    def __init__(self, path: Path) -> None:
        library = ct.CDLL(str(path))
        pointer, size = ct.c_void_p, ct.c_size_t
        self._encode: Any = library.firelane_encode_panels
        self._encode.argtypes = (ct.c_int32, pointer, size, size, pointer, pointer)
        self._encode.restype = size
        self._count: Any = library.firelane_count_exponents
        self._count.argtypes, self._count.restype = (pointer, size, pointer), None

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
    cpu = machine.cpu_identity()
    compiler = toolchain.find_compiler(settings)
    path = compiler.build(
        (SOURCES / "coded.cpp").read_text(),
        include_dirs=[],
        flags=find_target(replace(settings, isa=isa), cpu, compiler).flags,
        cache_dir=cache_dir,
        cpu_key=cpu.key,
        name="the encoder of panels",
    )
    return CodedLibrary(path)


@functools.cache
def coded_library() -> CodedLibrary | None:
    """For this machine, or None where it cannot be compiled or kept. UsageError as env.read()."""
    settings = env.read()
    try:
        return build(settings.cache_dir, settings, settings.isa)
    except (CompilerError, CacheError, OSError):
        return None
