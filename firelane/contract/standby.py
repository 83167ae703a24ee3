"""Memory of a process over a standby: what it gave back, and what it holds."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

STATUS = Path("/proc/self/status")
_PRIVATE = ("RssAnon:", "RssShmem:")


class GivenBack(NamedTuple):
    """Bytes of private memory that went back to the system, and that are still held."""

    released_bytes: int = 0
    resident_bytes: int = 0


NOTHING = GivenBack()


def private_bytes(status: Path = STATUS) -> int:
    """Memory of this process that no file backs; 0 where the system does not tell."""
    try:
        lines = [line.split() for line in status.read_text().splitlines()]
    except OSError:
        return 0
    return sum(int(words[1]) << 10 for words in lines if words and words[0] in _PRIVATE)
