"""Shared libraries of a few sources, compiled for this machine, and calls into them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from firelane import env
from firelane.native import machine, toolchain
from firelane.native.target import find_target


def build_library(
    name: str,
    sources: Sequence[Path],
    settings: env.Environment,
    cache_dir: Path,
    *,
    include_dirs: Sequence[Path] = (),
) -> Path:
    """Compile these sources as one for settings.isa ("": the best here), or find them compiled. name: for
    messages. Raises CompilerError, CacheError, UsageError, OSError."""
    cpu = machine.cpu_identity()
    compiler = toolchain.find_compiler(settings)
    return compiler.build(
        "\n".join(source.read_text() for source in sources),
        include_dirs=include_dirs,
        flags=find_target(settings, cpu, compiler).flags,
        cache_dir=cache_dir,
        cpu_key=cpu.key,
        name=name,
    )


def declared(symbol: Any, result: Any, *argtypes: Any) -> Any:
    symbol.argtypes, symbol.restype = argtypes, result
    return symbol


def address(array: NDArray[Any]) -> int:
    assert array.flags.c_contiguous
    return array.__array_interface__["data"][0]
