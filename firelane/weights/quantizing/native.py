"""The compiled search for scales (csrc/quantize.cpp): built once for a machine, or absent where there is no
compiler."""

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

SOURCES = Path(__file__).parent.parent / "csrc"


class QuantizeLibrary:
    """csrc/quantize.cpp. The GIL is released during a call."""

    __slots__ = ("_integers",)

    def __init__(self, path: Path) -> None:
        pointer, size = ct.c_void_p, ct.c_size_t
        arguments = pointer, size, size, ct.c_int32, pointer, size, pointer, pointer
        self._integers = declared(ct.CDLL(str(path)).firelane_quantize_integers, size, *arguments)

    def integers(
        self, groups: NDArray[np.float32], bits: int, ratios: NDArray[np.float32]
    ) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        """Codes and scales like those of integers.integers(). Raises ValueError for numbers that are not
        finite."""
        assert groups.flags.c_contiguous
        assert groups.dtype == ratios.dtype == np.float32
        codes, scales = np.empty(groups.shape, np.int8), np.empty(len(groups), np.float32)
        done: int = self._integers(
            groups.ctypes.data,
            *groups.shape,
            bits,
            ratios.ctypes.data,
            len(ratios),
            codes.ctypes.data,
            scales.ctypes.data,
        )
        if done < len(groups):
            raise ValueError("a weight is not finite")
        return codes, scales


def build(cache_dir: Path, settings: env.Environment, isa: str) -> QuantizeLibrary:
    """Compile for `isa` ("": the best here), or find it compiled. Raises CompilerError, CacheError,
    UsageError."""
    source = SOURCES / "quantize.cpp"
    path = build_library("the search for scales", [source], replace(settings, isa=isa), cache_dir)
    return QuantizeLibrary(path)


@functools.cache
def quantize_library() -> QuantizeLibrary | None:
    """For this machine, or None where it cannot be compiled or kept. UsageError as env.read()."""
    settings = env.read()
    try:
        return build(settings.cache_dir, settings, settings.isa)
    except (CompilerError, CacheError, OSError):
        return None
