"""Configurations on their way to another process, as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

ConfigT = TypeVar("ConfigT")


def to_text(config: Any) -> bytes:
    return msgspec.json.encode(config, enc_hook=str)


def from_text(text: bytes, kind: type[ConfigT]) -> ConfigT:
    """The value that `to_text` was given. Raises what `kind` refuses."""
    return msgspec.json.decode(text, type=kind, dec_hook=_path)


def _path(kind: type[Any], value: Any) -> Any:
    assert kind is Path
    return Path(value)
