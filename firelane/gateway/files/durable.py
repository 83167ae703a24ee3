"""Writes that are either whole or absent after a crash: temporary name, fsync, rename, fsync of the
directory.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` in the place of `path`. Returns when it lies on the drive."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_dir(path.parent)


def sync_dir(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def link_whole(source: Path, target: Path) -> None:
    """Give `source`, which is synced, a further name; a copy where the drive knows no such names."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        temporary = target.with_name(target.name + ".tmp")
        shutil.copyfile(source, temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    sync_dir(target.parent)
