"""Write-behind of a file that is being made: the drive takes its bytes while others come, so that the last
fsync has little left to do."""

from __future__ import annotations

import os
import threading
from types import TracebackType

INTERVAL_S = 0.25
"""Between two calls: a write that comes meanwhile is not held up by many small ones."""


class WriteBehind:
    """Has the bytes of an open file written to the drive while the block runs, in a thread of its own."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_over = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="write behind")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises the OSError of a drive that failed, which Linux tells one caller alone, unless the block
        failed."""
        self._is_over.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        while not self._is_over.wait(INTERVAL_S):
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                self._error = error
                return
