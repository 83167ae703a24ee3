"""The files of one engine's tier on a drive: pages in equal slots, and an index (records.py).

    DIRECTORY/<kind>/0.index, 0.pages       of the first engine of this kind that runs
    DIRECTORY/<kind>/1.index, 1.pages       of a second one beside it, which also reads the first one's

An engine locks the index that it writes; the kernel drops the lock when it ends, however that ends. So the
next engine has the same files, with all that is in them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import stat
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firelane.kv.tiers.memory import aligned
from firelane.kv.tiers.records import EMPTY, HEADER_BYTES, RECORD, Kind, SlotRecord, table_of
from firelane.storage import try_lock

SECTOR = 4096
MOST_SEGMENTS = 256
DIRECT = getattr(os, "O_DIRECT", 0)
log = logging.getLogger(__name__)


class TierSegment:
    """Slots on a drive. Whoever has made it with `is_own` writes, others read; calls may come from any
    thread. Raises OSError."""

    def __init__(self, stem: Path, kind: Kind, index_fd: int, *, num_slots: int, is_own: bool) -> None:
        """Takes over index_fd. is_own: its index is locked, and has num_slots slots."""
        self.stem, self.num_slots, self._index_fd = stem, num_slots, index_fd
        self.slot_bytes = slot_bytes(kind)
        self._pages_fd = _open_pages(stem.with_suffix(".pages"), is_own=is_own)
        if is_own:
            os.posix_fallocate(self._pages_fd, 0, num_slots * self.slot_bytes)
            os.ftruncate(self._pages_fd, num_slots * self.slot_bytes)

    def read(self, slot: int, into: NDArray[np.uint8]) -> None:
        """into: uint8 [slot_bytes], aligned."""
        if os.preadv(self._pages_fd, [into.data], slot * self.slot_bytes) != self.slot_bytes:
            raise OSError(errno.EIO, "shorter than its index says", str(self.stem))

    def write(self, slot: int, page: NDArray[np.uint8]) -> None:
        """page: as in `read`."""
        if os.pwritev(self._pages_fd, [page.data], slot * self.slot_bytes) != self.slot_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.stem))

    def write_record(self, record: SlotRecord) -> None:
        self._write_index(record.slot, record.packed())

    def clear_record(self, slot: int) -> None:
        self._write_index(slot, EMPTY)

    def erase(self, slots: Iterable[int]) -> None:
        """Records and bytes."""
        zeros = aligned(self.slot_bytes)
        for slot in slots:
            self.clear_record(slot)
            self.write(slot, zeros)

    def table(self) -> NDArray[np.void]:
        """All records as they are now."""
        wanted = self.num_slots * RECORD.itemsize
        data = bytearray()
        while len(data) < wanted:
            part = os.pread(self._index_fd, wanted - len(data), HEADER_BYTES + len(data))
            if not part:
                break
            data += part
        return table_of(bytes(data))

    def changed_ns(self) -> int:
        """Time when its index was last written; of use to see that it was."""
        return os.fstat(self._index_fd).st_mtime_ns

    def close(self) -> None:
        """Unlocks it; idempotent."""
        for fd in (self._pages_fd, self._index_fd):
            if fd >= 0:
                os.close(fd)
        self._pages_fd = self._index_fd = -1

    def _write_index(self, slot: int, record: bytes) -> None:
        os.pwrite(self._index_fd, record, HEADER_BYTES + slot * RECORD.itemsize)


def slot_bytes(kind: Kind) -> int:
    return -(-kind.page_bytes // SECTOR) * SECTOR


def kind_directory(directory: Path, kind: Kind) -> Path:
    """The directory of segments of this kind; those of others lie beside it."""
    return directory / hashlib.blake2b(repr(kind).encode(), digest_size=12).hexdigest()


def open_own(directory: Path, kind: Kind, num_slots: int, engines: int) -> tuple[TierSegment, bool]:
    """A segment that no other engine has, and whether its index was found whole. engines: that share the
    directory; segments of more than those are deleted where nobody uses them. Raises OSError."""
    place = kind_directory(directory, kind)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(MOST_SEGMENTS):
        stem = place / str(number)
        fd = _open_index(stem, os.O_RDWR | os.O_CREAT)
        if not try_lock(fd):
            os.close(fd)
            continue
        try:
            _remove_unused(place, number, engines)
            is_found = _prepare_index(fd, kind, num_slots)
            return TierSegment(stem, kind, fd, num_slots=num_slots, is_own=True), is_found
        except OSError:
            with contextlib.suppress(OSError):
                os.close(fd)
            raise
    raise OSError(errno.EBUSY, f"{MOST_SEGMENTS} engines use it", str(place))


def open_others(directory: Path, kind: Kind, known: Collection[Path]) -> list[TierSegment]:
    """Segments of this kind, to be read, but for those of these stems."""
    found: list[TierSegment] = []
    for path in sorted(kind_directory(directory, kind).glob("*.index")):
        if path.with_suffix("") in known:
            continue
        with contextlib.suppress(OSError):
            fd = _open_index(path.with_suffix(""), os.O_RDONLY)
            num_slots = (os.fstat(fd).st_size - HEADER_BYTES) // RECORD.itemsize
            if os.pread(fd, HEADER_BYTES, 0) == kind.header(num_slots):
                found.append(TierSegment(path.with_suffix(""), kind, fd, num_slots=num_slots, is_own=False))
            else:
                os.close(fd)
    return found


def lock_unused(index: Path) -> tuple[TierSegment, Kind] | None:
    """A segment that no engine uses, to be changed; None where one does. Raises OSError, also for a file that
    is no index of this version."""
    fd = _open_index(index.with_suffix(""), os.O_RDWR)
    try:
        kind = Kind.of_header(os.pread(fd, HEADER_BYTES, 0))
        if kind is None:
            raise OSError(errno.EINVAL, "no index of this version", str(index))
        if try_lock(fd):
            num_slots = (os.fstat(fd).st_size - HEADER_BYTES) // RECORD.itemsize
            return TierSegment(index.with_suffix(""), kind, fd, num_slots=num_slots, is_own=True), kind
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _prepare_index(fd: int, kind: Kind, num_slots: int) -> bool:
    """Give it so many slots, with the records that it has if it is of this kind; whether it is."""
    size = os.fstat(fd).st_size
    before = max(0, size - HEADER_BYTES) // RECORD.itemsize
    is_found = size > 0 and os.pread(fd, HEADER_BYTES, 0) == kind.header(before)
    if size and not is_found:
        log.warning("kv_disk_made_anew: an index is damaged, or of another version")
        os.ftruncate(fd, 0)
    os.ftruncate(fd, HEADER_BYTES + min(before, num_slots) * RECORD.itemsize if is_found else HEADER_BYTES)
    os.posix_fallocate(fd, 0, HEADER_BYTES + num_slots * RECORD.itemsize)
    os.pwrite(fd, kind.header(num_slots), 0)
    return is_found


def _remove_unused(place: Path, own: int, engines: int) -> None:
    for path in place.glob("*.index"):
        number = path.stem
        if not number.isdecimal() or int(number) < engines or int(number) == own:
            continue
        with contextlib.suppress(OSError):
            fd = _open_index(path.with_suffix(""), os.O_RDWR)
            if try_lock(fd):
                path.with_suffix(".pages").unlink(missing_ok=True)
                path.unlink()
            os.close(fd)


def _open_index(stem: Path, flags: int) -> int:
    return _open_regular(stem.with_suffix(".index"), flags)


def _open_pages(path: Path, *, is_own: bool) -> int:
    """Past the page cache, where the file system can: pages would lie in memory twice."""
    flags = os.O_RDWR | os.O_CREAT if is_own else os.O_RDONLY
    try:
        return _open_regular(path, flags | DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return _open_regular(path, flags)  # raises again where that was not about O_DIRECT


def _open_regular(path: Path, flags: int) -> int:
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    found, is_written = os.fstat(fd), flags & os.O_ACCMODE != os.O_RDONLY
    problem = "" if stat.S_ISREG(found.st_mode) else "not a regular file"
    if is_written and found.st_nlink > 1:
        problem = "it has a second name (a hard link), whose content would be overwritten: remove one of both"
    if problem:
        os.close(fd)
        raise OSError(errno.EINVAL, problem, str(path))
    return fd
