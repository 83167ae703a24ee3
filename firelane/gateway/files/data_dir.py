"""The directory that a server keeps files and batches in, held by one server at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from firelane.errors import StorageError


class DataDir:
    """Owns the lock on `path`; the kernel drops it when the process ends, however it ends. Without a path
    the server keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock: int | None = None
        self._failure = "another server still holds it"

    def acquire(self) -> bool:
        """Try to become the holder. False when another server is, or when the directory cannot be made."""
        if self._lock is not None or self.path is None:
            return self._lock is not None
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._failure = error.strerror or str(error)
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            self._failure = "another server still holds it"
            return False
        self._lock = fd
        return True

    def release(self) -> None:
        fd, self._lock = self._lock, None
        if fd is not None:
            os.close(fd)

    @property
    def root(self) -> Path:
        """Raises StorageError unless held."""
        if self.path is None:
            raise StorageError("this server keeps no files: start it with --data-dir", code="no_storage")
        if self._lock is None:
            raise StorageError(
                f"files and batches are not available: the data directory cannot be used ({self._failure})",
                code="no_storage",
            )
        return self.path
