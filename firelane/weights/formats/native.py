"""The compiled kernels of the weight codec: built once for a machine, or absent where there is no
compiler.
"""

from __future__ import annotations

import ctypes as ct
import functools
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from firelane import env
from firelane.errors import CacheError, CompilerError
from firelane.native.library import address, build_library, declared

SOURCES = Path(__file__).parent.parent / "csrc"


class CodecLibrary:
    """csrc/codec.cpp. Arrays must be contiguous and of the named dtypes; lengths are checked. The GIL is
    released during a call.
    """

    __slots__ = ("_count", "_merge", "_split")

    def __init__(self, path: Path) -> None:
        library = ct.CDLL(str(path))
        pointer, size = ct.c_void_p, ct.c_size_t
        self._split = declared(library.firelane_split, None, pointer, pointer, pointer, size)
        self._merge = declared(library.firelane_merge, None, pointer, pointer, pointer, size)
        self._count = declared(library.firelane_count, None, pointer, size, pointer)

    def split(self, bits: NDArray[Any], sign_mantissa: NDArray[Any], exponent: NDArray[Any]) -> None:
        """bits: uint16 [n], in; sign_mantissa, exponent: uint8 [n], out."""
        assert len(bits) == len(sign_mantissa) == len(exponent)
        self._split(address(bits), address(sign_mantissa), address(exponent), len(bits))

    def merge(self, sign_mantissa: NDArray[Any], exponent: NDArray[Any], bits: NDArray[Any]) -> None:
        """sign_mantissa, exponent: uint8 [n], in; bits: uint16 [n], out."""
        assert len(bits) == len(sign_mantissa) == len(exponent)
        self._merge(address(sign_mantissa), address(exponent), address(bits), len(bits))

    def count(self, bits: NDArray[Any], counts: NDArray[Any]) -> None:
        """bits: uint16 [n], in; counts: int64 [256], the number of each exponent is added."""
        assert counts.shape == (256,)
        self._count(address(bits), len(bits), address(counts))


@functools.cache
def codec_library() -> CodecLibrary | None:
    """The compiled kernels, or None where they cannot be compiled or kept. UsageError as env.read()."""
    settings = env.read()
    try:
        sources = [SOURCES / "codec.cpp"]
        path = build_library(
            "the weight codec", sources, settings, settings.cache_dir, include_dirs=[SOURCES]
        )
        return CodecLibrary(path)
    except (CompilerError, CacheError, OSError):
        return None
