"""The tiers of the KV cache that options give."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from firelane.engine_config import TiersConfig
from firelane.errors import UsageError


def prepared(tiers: TiersConfig) -> TiersConfig:
    """The same tiers, with paths that do not depend on the current directory; the one on a drive has its
    directory. Raises UsageError."""
    disk, key_file = tiers.disk, tiers.disk_key_file
    return msgspec.structs.replace(
        tiers,
        disk=None if disk is None else _directory(disk),
        disk_key_file=None if key_file is None else key_file.absolute(),
    )


def _directory(path: Path) -> Path:
    """A directory that nobody else writes to, made where it is not there. Raises UsageError."""
    path = path.absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise UsageError(f"--kv-disk {path}: {error.strerror or error}") from None
    # Its group may: volumes of Kubernetes belong to root and the pod's fsGroup.
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & stat.S_IWOTH:
        raise UsageError(
            f"--kv-disk {path}: other users can put pages there; chmod o-w it, or take a directory of "
            "your own"
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"--kv-disk {path}: it cannot be written to; take another one")
    return path
