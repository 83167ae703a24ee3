"""Writing safetensors files, good ones and bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Bits of bf16, to nearest even; no NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], dtype: str = "float32") -> None:
    """Write float32 arrays as `dtype`; uint16 arrays are taken for bits of bf16."""
    blobs: dict[str, bytes] = {}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, values in tensors.items():
        kind = "bfloat16" if values.dtype == np.uint16 else dtype
        blobs[name] = encode(values, kind)
        header[name] = {
            "dtype": NAMES[kind],
            "shape": list(values.shape),
            "data_offsets": [at, at + len(blobs[name])],
        }
        at += len(blobs[name])
    write_raw(path, json.dumps(header).encode(), b"".join(blobs.values()))


def encode(values: np.ndarray, dtype: str) -> bytes:
    if values.dtype == np.uint16:
        return values.tobytes()
    return to_bf16(values).tobytes() if dtype == "bfloat16" else values.astype(dtype).tobytes()


def write_raw(path: Path, header: bytes, data: bytes, *, length: int | None = None) -> None:
    """A file with this header and data; `length` overrides what the file says about its header."""
    header += b" " * (-len(header) % 8) if length is None else b""
    path.write_bytes((length if length is not None else len(header)).to_bytes(8, "little") + header + data)
