"""Small JSON files in the cache that are read only if they are what was written.

{"digest": SHA-256 of the bytes of `content`, "content": …}
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
MOST_BYTES = 1 << 24


class Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: str
    content: msgspec.Raw


def read(path: Path, kind: type[T]) -> T | None:
    """The content as a `kind`; None where the file is absent, damaged or of another kind."""
    try:
        with path.open("rb") as file:
            sealed = msgspec.json.decode(file.read(MOST_BYTES), type=Sealed)
        if sealed.digest != _digest(bytes(sealed.content)):
            return None
        return msgspec.json.decode(sealed.content, type=kind)
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return None


def write(path: Path, content: Any) -> None:
    """Into a temporary file, then renamed: the file is whole or not there. Raises OSError."""
    text = msgspec.json.format(msgspec.json.encode(content), indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix=f"{path.stem}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(b'{"digest": "%s",\n"content": %s}\n' % (_digest(text).encode(), text))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
