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
from firelane.native import machine, toolchain
from firelane.native.target import find_target

SOURCES = Path(__file__).parent.parent / "csrc"


class CodecLibrary:
    """csrc/codec.cpp. Arrays must be contiguous and of the named dtypes; lengths are checked. The GIL is
    released during a call.
    """

    __slots__ = ("_count", "_merge", "_split")

    def __init__(self, path: Path) -> None:
        library = ct.CDLL(str(path))
        pointer, size = ct.c_void_p, ct.c_size_t
        self._split = _function(library.firelane_split, pointer, pointer, pointer, size)
        self._merge = _function(library.firelane_merge, pointer, pointer, pointer, size)
        self._count = _function(library.firelane_count, pointer, size, pointer)

    def split(self, bits: NDArray[Any], sign_mantissa: NDArray[Any], exponent: NDArray[Any]) -> None:
        """bits: uint16 [n], in; sign_mantissa, exponent: uint8 [n], out."""
        assert len(bits) == len(sign_mantissa) == len(exponent)
        self._split(_address(bits), _address(sign_mantissa), _address(exponent), len(bits))

    def merge(self, sign_mantissa: NDArray[Any], exponent: NDArray[Any], bits: NDArray[Any]) -> None:
        """sign_mantissa, exponent: uint8 [n], in; bits: uint16 [n], out."""
        assert len(bits) == len(sign_mantissa) == len(exponent)
        self._merge(_address(sign_mantissa), _address(exponent), _address(bits), len(bits))

    def count(self, bits: NDArray[Any], counts: NDArray[Any]) -> None:
        """bits: uint16 [n], in; counts: int64 [256], the number of each exponent is added."""
        assert counts.shape == (256,)
        self._count(_address(bits), len(bits), _address(counts))


@functools.cache
def codec_library() -> CodecLibrary | None:
    """The compiled kernels, or None where they cannot be compiled or kept. UsageError as env.read()."""
    settings = env.read()
    cpu = machine.cpu_identity()
    try:
        compiler = toolchain.find_compiler(settings)
        path = compiler.build(
            (SOURCES / "codec.cpp").read_text(),
            include_dirs=[SOURCES],
            flags=find_target(settings, cpu, compiler).flags,
            cache_dir=settings.cache_dir,
            cpu_key=cpu.key,
            name="the weight codec",
        )
        return CodecLibrary(path)
    except (CompilerError, CacheError, OSError):
        return None


def _function(symbol: Any, *argtypes: Any) -> Any:
    symbol.argtypes, symbol.restype = argtypes, None
    return symbol


def _address(array: NDArray[Any]) -> int:
    assert array.flags.c_contiguous
    return array.__array_interface__["data"][0]
