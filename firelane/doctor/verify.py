"""verify_cache: everything in the cache directory that carries a digest is read and compared with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from firelane.native.toolchain import has_digest
from firelane.weights.packing.packed import is_intact
from firelane.weights.storage import checked_json


@dataclass(frozen=True, kw_only=True)
class CacheCheck:
    """files, nbytes: what was read. damaged: paths."""

    files: int
    nbytes: int
    damaged: tuple[str, ...]
    seconds: float


def verify_cache(directory: Path) -> CacheCheck:
    """Reads packed weights, compiled kernels and small records; what is damaged is named, not removed."""
    began_s = time.monotonic()
    checks: dict[str, Callable[[Path], bool]] = {
        "weights/*.weights": is_intact,
        "weights/*.json": _is_record,
        "estimates/*.json": _is_record,
        "kernels/*.so": lambda path: has_digest(path, path.stem),
    }
    found = [(path, check) for pattern, check in checks.items() for path in sorted(directory.glob(pattern))]
    return CacheCheck(
        files=len(found),
        nbytes=sum(path.stat().st_size for path, _ in found),
        damaged=tuple(str(path) for path, check in found if not check(path)),
        seconds=time.monotonic() - began_s,
    )


def _is_record(path: Path) -> bool:
    return checked_json.read(path, msgspec.Raw) is not None
