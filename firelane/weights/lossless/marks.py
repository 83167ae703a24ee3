"""The marks of a packed checkpoint, in config.json and in the headers of its files: whoever opens a plain one
needs no more of this package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from firelane.errors import CheckpointError
from firelane.storage import read_regular
from firelane.weights.storage.safetensors import SafetensorsFile

VERSION = 1
FORMAT = "firelane-lossless"
CONTROL = "firelane_lossless.control"
STREAM_SUFFIX = ".firelane_lossless"
CONFIG = "config.json"
BLOCK = "firelane_lossless"
MAX_BYTES = 64 << 20


def is_packed(file: SafetensorsFile) -> bool:
    """Any trace of the format counts, so that a damaged packed file is not taken for a plain one."""
    return (
        file.metadata.get("format") == FORMAT
        or CONTROL in file.tensors
        or any(name.endswith(STREAM_SUFFIX) for name in file.tensors)
    )


def declared_version(directory: Path) -> Any:
    """The version that config.json declares; None where it declares none, or there is no config.json."""
    if not (directory / CONFIG).is_file():
        return None
    config = read_object(directory / CONFIG)
    if BLOCK not in config:
        return None
    block = config[BLOCK]
    return cast(dict[str, Any], block).get("version", "") if isinstance(block, dict) else ""


def check_version(directory: Path, version: Any) -> None:
    if type(version) is not int or version != VERSION:
        raise CheckpointError(
            f"{directory}: packed in version {str(version)[:20]!r}, this Firelane reads version {VERSION}; "
            "update it"
        )


def read_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds. Raises CheckpointError."""
    try:
        content = json.loads(read_regular(path, MAX_BYTES))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return cast(dict[str, Any], content)
