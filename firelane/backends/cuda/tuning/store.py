"""Measured configs on disk: `<cache>/cuda-tuning/<key>.json`, one file for each kind of device, version of
the compiler and of the kernels. A file that is not exactly what write() wrote counts as absent."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

import torch
import triton

from firelane.backends.cuda.device.linear_config import LinearConfig, MeasuredTable, ProductShape
from firelane.storage import read_regular, write_whole

KERNELS = Path(__file__).parent.parent / "kernels" / "matmul"
PRODUCTS = (
    "coded",
    "escapes",
    "experts",
    "gated",
    "group_rows",
    "linear",
    "products",
    "tiling",
    "transpose",
)  # kernels that configs are of
T = TypeVar("T")


def path_of(cache_dir: Path, device_name: str) -> Path:
    """Another file wherever what was measured may no longer hold."""
    sources = [(KERNELS / f"{name}.py").read_bytes() for name in PRODUCTS]
    versions = f"{device_name}\n{torch.__version__}\n{triton.__version__}\n"
    key = hashlib.sha256(versions.encode() + b"".join(sources)).hexdigest()[:16]
    return cache_dir / "cuda-tuning" / f"{key}.json"


def read(cache_dir: Path, device_name: str) -> MeasuredTable | None:
    """The table that was measured on such a device; None if nothing was."""
    try:
        entries: Any = json.loads(read_regular(path_of(cache_dir, device_name)))
        return {_record(ProductShape, e["shape"]): _record(LinearConfig, e["config"]) for e in entries}
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write(cache_dir: Path, device_name: str, table: Mapping[ProductShape, LinearConfig]) -> Path:
    """Raises OSError."""
    path = path_of(cache_dir, device_name)
    entries = [{"shape": dataclasses.asdict(s), "config": dataclasses.asdict(c)} for s, c in table.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, ("[\n" + ",\n".join(map(json.dumps, entries)) + "\n]\n").encode())
    return path


def _record(kind: type[T], fields: Any) -> T:
    """Raises TypeError where fields are missing, unknown or of another type, bool for int included."""
    types = get_type_hints(kind)
    if not isinstance(fields, dict):
        raise TypeError(f"{kind.__name__} is not an object")
    named = cast(dict[str, Any], fields)
    if {name: type(value) for name, value in named.items()} != types:
        raise TypeError(f"{kind.__name__} has other fields")
    return kind(**named)
