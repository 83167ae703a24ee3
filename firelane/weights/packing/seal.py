"""Seal of a packed file: it may be served once it is written, but counts as packed only when it lies on the
drive.

The seal is the file's source (source.py), which is written when the bytes and the name are durable. A file
without one is packed again, however its writer ended: a rename may reach the drive before the bytes do.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from firelane.errors import CacheError
from firelane.storage import sync_directory
from firelane.weights.packing.source import PackedSource


class Seal:
    """The sealing of one file, in a thread that outlives its maker's. lock: given up when it has ended; no
    other process packs the same meanwhile. A file that the drive did not take is removed."""

    def __init__(self, path: Path, source: PackedSource, lock: contextlib.ExitStack) -> None:
        """Raises OSError."""
        self._path, self._source, self._failure = path, source, ""
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # No daemon: a process that ends early seals what it has packed.
        self._thread = threading.Thread(target=self._run, args=(lock,), name="seal weights")
        self._thread.start()

    def wait(self) -> None:
        """Until it has ended. Raises CacheError where the drive failed."""
        self._thread.join()
        if self._failure:
            raise CacheError(self._failure)

    def _run(self, lock: contextlib.ExitStack) -> None:
        with lock:
            try:
                os.fsync(self._fd)
                sync_directory(self._path.parent)
                self._source.write(self._path)
            except OSError as error:
                with contextlib.suppress(OSError):
                    self._path.unlink()
                self._failure = (
                    f"{self._path.parent}: packed weights cannot be written: {error.strerror}; set "
                    "FIRELANE_CACHE_DIR to another directory"
                )
            finally:
                os.close(self._fd)
