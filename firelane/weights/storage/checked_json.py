"""Small JSON files in the cache that are read only if they are what was written.

{"digest": SHA-256 of the bytes of `content`, "content": …}
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from firelane.storage import read_regular, write_whole

T = TypeVar("T")
MOST_BYTES = 1 << 24


class ChecksummedJson(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: str
    content: msgspec.Raw


def read(path: Path, kind: type[T]) -> T | None:
    """The content as a `kind`; None where the file is absent, damaged or of another kind."""
    try:
        checked = msgspec.json.decode(read_regular(path, MOST_BYTES), type=ChecksummedJson)
        if checked.digest != _digest(bytes(checked.content)):
            return None
        return msgspec.json.decode(checked.content, type=kind)
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return None


def write(path: Path, content: Any) -> None:
    """Raises OSError."""
    text = msgspec.json.format(msgspec.json.encode(content), indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, b'{"digest": "%s",\n"content": %s}\n' % (_digest(text).encode(), text))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
