"""OutputDirectory: a directory that is written file by file, looks whole only when it is, and can be resumed.

A marker file lies in it while work is unfinished; a lock on the marker keeps a second writer out. Each file
is whole and durable under its name. The file without which the directory is no model
(config.json) is for the caller to write last.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from firelane.errors import OutputError
from firelane.storage import TEMPORARY_SUFFIX, replacing, sync_directory, try_lock

FLUSH_BYTES = 32 << 20
BUFFERS_AT_ONCE = 512  # no system's IOV_MAX is below
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class OutputFile:
    """A file that is being written. Does not own its descriptor. OSError when the disk is full."""

    __slots__ = ("_end", "_fd", "_flushed")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._end = 0
        self._flushed = 0

    def reserve(self, nbytes: int) -> None:
        """Claim the room now: a full disk is better met before the work than in the middle of it."""
        if nbytes and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._fd, 0, nbytes)

    def write(self, data: Any) -> None:
        """Behind what was written so far."""
        self.put(self._end, [data])
        self._end += memoryview(data).nbytes

    def put(self, position: int, buffers: list[Any]) -> None:
        """The buffers one after the other, from `position` on."""
        for at in range(0, len(buffers), BUFFERS_AT_ONCE):
            views = [memoryview(b).cast("B") for b in buffers[at : at + BUFFERS_AT_ONCE]]
            while views:
                done = os.pwritev(self._fd, views, position)
                position += done
                while views and done >= len(views[0]):
                    done -= len(views.pop(0))
                if done:
                    views[0] = views[0][done:]
        if position > self._flushed + FLUSH_BYTES and hasattr(os, "posix_fadvise"):
            # To the drive now, rather than all of it at the end; what is there leaves the page cache, which
            # others need more.
            os.posix_fadvise(self._fd, 0, position, os.POSIX_FADV_DONTNEED)
            self._flushed = position

    def finish(self, nbytes: int) -> None:
        """Cut off all that lies behind `nbytes`."""
        os.ftruncate(self._fd, nbytes)


class OutputDirectory:
    """To be used as a context manager: entering it checks and claims the directory, leaving it without an
    exception makes it a finished one.
    """

    def __init__(
        self, path: Path, *, marker: str, task: Mapping[str, object], is_whole: Callable[[], bool]
    ) -> None:
        """`task` (JSON) says what is written here: another run may resume only the same. `is_whole` tells
        whether the directory, which has no marker, holds that task's finished result.
        """
        self.path = path
        self._marker = path / marker
        self._task = json.dumps(task, sort_keys=True)
        self._is_whole = is_whole
        self._was_whole = False
        self._lock: int | None = None

    def __enter__(self) -> OutputDirectory:
        """Raises OutputError when it cannot be written, holds something else, or is being written."""
        with output_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            if not self._marker.exists() and any(self.path.iterdir()):
                self._was_whole = self._is_whole()
                if not self._was_whole:
                    raise OutputError(f"{self.path}: is not empty; give a new or an empty directory")
            self._lock = os.open(self._marker, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self._claim(self._lock)
            except BaseException:
                os.close(self._lock)
                raise
            for stale in self.path.glob(f"*{TEMPORARY_SUFFIX}"):
                stale.unlink()  # of a run that was killed
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._lock is not None
        with output_errors(self.path):
            if kind is None or self._was_whole:
                self._marker.unlink(missing_ok=True)
                sync_directory(self.path)
            os.close(self._lock)

    @contextlib.contextmanager
    def writing(self, name: str) -> Generator[OutputFile]:
        """The file `name` to be written. It gets its name at the end, on disk; after an exception
        nothing is left of it. A directory that was whole is not written to: what is not as it was left is
        somebody else's. Raises OutputError.
        """
        final = self.path / name
        if self._was_whole:
            raise OutputError(
                f"{final}: was changed or is of another model; give a new or an empty directory"
            )
        with output_errors(final), replacing(final, durable=True) as temporary:
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                yield OutputFile(fd)
            finally:
                os.close(fd)

    def write(self, name: str, content: bytes) -> None:
        """A small file at once, unless it is there already. Raises OutputError."""
        path = self.path / name
        with output_errors(path):
            if path.is_file() and path.read_bytes() == content:
                return
        with self.writing(name) as file:
            file.write(content)

    def _claim(self, fd: int) -> None:
        if not try_lock(fd):
            raise OutputError(f"{self.path}: another process is writing it; wait for that one")
        task = os.pread(fd, 1 << 24, 0).decode(errors="replace")
        if not task:  # new, or the one that began it got no further than this
            os.pwrite(fd, self._task.encode(), 0)
        elif task != self._task:
            raise OutputError(
                f"{self.path}: holds unfinished work on another model; delete it, or give another directory"
            )


@contextlib.contextmanager
def output_errors(path: Path) -> Generator[None]:
    """OSErrors of writing `path` as OutputError."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            what = "no room left on this disk; free some space and run the same command again, it goes on"
        else:
            what = f"cannot be written: {error.strerror}"
        raise OutputError(f"{path}: {what}") from error
