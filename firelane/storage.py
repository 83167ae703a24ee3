"""Files that are whole or absent: written under a temporary name beside their own, then renamed.

A file under its final name is whole, whenever a process was killed. `durable` adds what a power loss needs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import stat
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from firelane.errors import CacheError, UsageError

TEMPORARY_SUFFIX = ".tmp"
LEAST_KEY_BYTES = 16
WRITTEN_BY_OTHERS, USED_BY_OTHERS = 0o022, 0o077
"""Bits of a mode: the right to write of group and others; all their rights."""
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = False) -> Generator[Path]:
    """A new temporary name for the block to write a file under, which then takes the place of `path`. After
    an exception nothing is left of it.

    durable: bytes and name lie on the drive when the block has ended. A rename may reach the drive before the
    bytes do: without it, a power loss can leave a file of zeros.
    """
    temporary = path.with_name(f"{path.name}.{os.urandom(8).hex()}{TEMPORARY_SUFFIX}")
    try:
        yield temporary
        _take_from_others(temporary)
        if durable:
            _sync(temporary, os.O_RDONLY)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def _take_from_others(path: Path) -> None:
    """The right to write, which a umask of 0 gives everybody. A confined process changes no modes, and has
    another umask."""
    with contextlib.suppress(FileNotFoundError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & WRITTEN_BY_OTHERS:
            path.chmod(mode & ~WRITTEN_BY_OTHERS)


def write_whole(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Put `data` in the place of `path`."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_bytes(data)


def keep_from_others(rights: int) -> None:
    """Files and directories that this process and its children make from now on are without these rights,
    WRITTEN_BY_OTHERS or USED_BY_OTHERS, whatever the umask was."""
    os.umask(os.umask(0o777) | rights)


def open_own(path: Path) -> BinaryIO:
    """A file to read from that nobody but this user, or root, can have written. Raises OSError, as
    open_regular does."""
    file = open_regular(path)
    status = os.fstat(file.fileno())
    if status.st_uid in (os.geteuid(), 0) and not status.st_mode & stat.S_IWOTH:
        return file
    file.close()
    raise OSError(errno.EPERM, "others may have written it", str(path))


def open_regular(path: Path) -> BinaryIO:
    """A file to read from. OSError for a pipe, maybe without a writer, and a device, maybe without an end."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(fd, "rb")


def read_regular(path: Path, most_bytes: int = 16 << 20) -> bytes:
    """The bytes of a file that has no more of them. OSError."""
    with open_regular(path) as file:
        return _read_all(file, path, most_bytes)


def read_own(path: Path, most_bytes: int) -> bytes:
    """The bytes of a file that nobody but this user, or root, can have written. Raises OSError."""
    with open_own(path) as file:
        return _read_all(file, path, most_bytes)


def _read_all(file: BinaryIO, path: Path, most_bytes: int) -> bytes:
    data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes >> 20} MiB", str(path))
    return data


def cluster_key(file: Path | None, fallback: str) -> bytes:
    """The secret that servers, or hosts, of one cluster share. fallback: of FIRELANE_CLUSTER_KEY, without a
    file. Raises UsageError."""
    source = "FIRELANE_CLUSTER_KEY" if file is None else f"--cluster-key-file {file}"
    try:
        key = fallback.encode() if file is None else read_regular(file.expanduser()).strip()
    except OSError as error:
        raise UsageError(f"{source}: {error.strerror}") from error
    if not key and file is None:
        raise UsageError(
            "hosts of a cluster share a secret: give --cluster-key-file FILE, or FIRELANE_CLUSTER_KEY "
            "(openssl rand -hex 32 makes one)"
        )
    if len(key) < LEAST_KEY_BYTES:
        raise UsageError(
            f"{source} has {len(key)} bytes: hosts share a secret of {LEAST_KEY_BYTES} or more, the same on "
            "all of them (openssl rand -hex 32 makes one)"
        )
    return key


def cache_directory(path: Path) -> None:
    """Make a directory of the cache, or check that nobody but this user, or root, can have put files there.
    Raises CacheError where another user owns it or everybody may write to it, OSError where it cannot be
    made.
    """
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):
        what = f"belongs to another user (uid {status.st_uid})"
    elif status.st_mode & stat.S_IWOTH:
        what = "can be written by everybody"
    else:
        return
    raise CacheError(
        f"{path}: {what}, and so could what is loaded from there; set FIRELANE_CACHE_DIR to another directory"
    )


def link_whole(source: Path, target: Path) -> None:
    """Give `source`, which is durable, a further durable name; a copy where the drive knows no such names."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        with replacing(target, durable=True) as temporary:
            shutil.copyfile(source, temporary)
    sync_directory(target.parent)


def remove_leftovers(path: Path) -> None:
    """Remove temporary files for `path` of processes that were killed. The caller holds a lock against others
    that write it now."""
    for stale in path.parent.glob(f"{glob.escape(path.name)}.*{TEMPORARY_SUFFIX}"):
        stale.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


@contextlib.contextmanager
def locked(path: Path) -> Generator[None]:
    """An exclusive lock on the file `path`, which is made; waits for its holder. The kernel drops it when its
    holder ends, however that ends. No lock where the file system has none."""
    with path.open("w") as file:
        _lock(file.fileno(), fcntl.LOCK_EX)
        yield


def try_lock(fd: int) -> bool:
    """Lock the open file `fd` until it is closed; False where another process holds it. True without a lock
    where the file system has none."""
    try:
        _lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock(fd: int, how: int) -> None:
    try:
        fcntl.flock(fd, how)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class UseMark:
    """Tells other processes that something of the cache is used, and when it was used last: a shared lock on
    the file `path`, whose time is that of the last use. The kernel drops the lock when its holder ends,
    however that ends. No mark where the file cannot be made.
    """

    __slots__ = ("_fd",)

    def __init__(self, path: Path) -> None:
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.utime(self._fd)
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> UseMark:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def is_in_use(path: Path) -> bool:
    """Whether a process holds a UseMark on `path`."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False
