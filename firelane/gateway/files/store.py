"""Files of tenants: content and description side by side, an index in memory.

DIR/files/OWNER/ID.data is the content, ID.json the description. A file exists when its description does: it
is written last and deleted first. OWNER is a hash of the tenant's name, so that no name is a path.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from firelane.api.stored.files import FileObject
from firelane.errors import NotFoundError, QueueFullError, StorageError, TooLargeError
from firelane.gateway.config import FileLimits
from firelane.gateway.files.data_dir import DataDir
from firelane.storage import link_whole, sync_directory, write_whole

log = logging.getLogger(__name__)
GROUP_BYTES = 1 << 20
"""Bytes of an upload that go to the drive together."""
FILE_ID = re.compile(r"file-[0-9a-f]{24}[oe]?", re.ASCII)
"""o and e end the ids of a batch's output and error files."""


class FileStore:
    """All files of a server. Methods raise StorageError while the data directory is not held. Only the event
    loop calls them, except where they say so.
    """

    def __init__(self, data: DataDir, limits: FileLimits, clock: Callable[[], float] = time.time) -> None:
        self.limits = limits
        self._data = data
        self._clock = clock
        self._by_tenant: dict[str, TenantFiles] = {}

    def tenant_files(self, tenant: str) -> TenantFiles:
        """The files of one tenant; read from the drive at its first use."""
        root = self._data.root
        found = self._by_tenant.get(tenant)
        if found is None:
            owner = hashlib.blake2b(tenant.encode(), digest_size=16, person=b"firelane.files").hexdigest()
            try:
                found = TenantFiles(root / "files" / owner, self.limits, self._clock)
            except OSError as error:
                raise unusable(error) from error
            self._by_tenant[tenant] = found
        return found


class TenantFiles:
    """One tenant's files, oldest first."""

    def __init__(self, path: Path, limits: FileLimits, clock: Callable[[], float]) -> None:
        self._path = path
        self._limits = limits
        self._clock = clock
        self._files: dict[str, FileObject] = {}
        self._used_bytes = 0
        self._pending = 0
        path.mkdir(parents=True, exist_ok=True)
        self._load()

    def _load(self) -> None:
        """Read the descriptions; remove what a crash has left without one."""
        found: list[tuple[int, int, str, FileObject]] = []
        for path in self._path.glob("*.json"):
            try:
                file = msgspec.json.decode(path.read_bytes(), type=FileObject)
            except (msgspec.DecodeError, OSError) as error:
                log.error("file_unreadable path=%s error=%s", path, error)
                continue
            found.append((file.created_at, path.stat().st_mtime_ns, file.id, file))
        for *_, file in sorted(found, key=lambda entry: entry[:3]):
            self._add(file)
        for path in self._path.iterdir():
            known = FILE_ID.fullmatch(path.stem) and path.with_suffix(".json").exists()
            if path.suffix in (".tmp", ".part") or (path.suffix == ".data" and not known):
                path.unlink()

    def _add(self, file: FileObject) -> None:
        self._files[file.id] = file
        self._used_bytes += file.bytes

    def all(self) -> list[FileObject]:
        self._expire()
        return list(self._files.values())

    def get(self, file_id: str) -> FileObject:
        """Raises NotFoundError, for another tenant's file too."""
        self._expire()
        file = self._files.get(file_id)
        if file is None:
            raise NotFoundError(f"there is no file {file_id[:80]!r}", param="file_id", code="file_not_found")
        return file

    def content(self, file_id: str) -> Path:
        """The path of the content. Raises NotFoundError."""
        return self._path / f"{self.get(file_id).id}.data"

    def delete(self, file_id: str) -> None:
        """Raises NotFoundError."""
        file = self.get(file_id)
        (self._path / f"{file.id}.json").unlink(missing_ok=True)
        sync_directory(self._path)
        (self._path / f"{file.id}.data").unlink(missing_ok=True)
        del self._files[file.id]
        self._used_bytes -= file.bytes

    def _expire(self) -> None:
        now = self._clock()
        for file in [f for f in self._files.values() if f.expires_at is not None and f.expires_at <= now]:
            del self._files[file.id]
            self._used_bytes -= file.bytes
            for suffix in (".json", ".data"):
                (self._path / f"{file.id}{suffix}").unlink(missing_ok=True)

    def begin(self) -> PendingFile:
        """A file that comes piece by piece. Raises TooLargeError and QueueFullError where the tenant has no
        room for one more.
        """
        self._expire()
        if len(self._files) + self._pending >= self._limits.tenant_files:
            raise TooLargeError(
                f"{self._limits.tenant_files} files are kept already: delete some", code="file_quota_exceeded"
            )
        if self._pending >= self._limits.tenant_uploads:
            raise QueueFullError(f"{self._pending} uploads are under way: try again when one has ended")
        self._check_room(1)
        try:
            return PendingFile(self, self._path / f"{secrets.token_hex(12)}.part")
        except OSError as error:
            raise unusable(error) from error

    def _check_room(self, more_bytes: int) -> None:
        if self._used_bytes + more_bytes > self._limits.tenant_bytes:
            raise TooLargeError(
                f"files may take {self._limits.tenant_bytes} bytes in all: delete some",
                code="file_quota_exceeded",
            )

    def reserve(self, more_bytes: int) -> None:
        """Called by a PendingFile that grows, with a negative amount when it ends."""
        if more_bytes > 0:
            self._check_room(more_bytes)
        self._used_bytes += more_bytes

    def count_pending(self, change: int) -> None:
        self._pending += change

    def describe(
        self, *, size_bytes: int, name: str, purpose: str, expires_s: int | None, file_id: str = ""
    ) -> FileObject:
        """A new file's description. expires_s: from now, None for never."""
        now = int(self._clock())
        return FileObject(
            id=file_id or f"file-{secrets.token_hex(12)}",
            bytes=size_bytes,
            created_at=now,
            expires_at=None if expires_s is None else now + expires_s,
            filename=name,
            purpose=purpose,
        )

    def publish(self, source: Path, file: FileObject) -> None:
        """Make `source`, which is synced and keeps its name, the content of `file`. Blocks; may run in a
        thread. Repeating it after a crash does no harm. Raises StorageError.
        """
        try:
            link_whole(source, self._path / f"{file.id}.data")
            write_whole(self._path / f"{file.id}.json", msgspec.json.encode(file), durable=True)
        except OSError as error:
            raise unusable(error) from error

    def show(self, file: FileObject) -> None:
        """List what `publish` has stored."""
        self._add(file)

    def has(self, file_id: str) -> bool:
        return file_id in self._files


class PendingFile:
    """A file on its way in. Counts against its tenant's room from the first byte; ends by `discard`; what was
    published by then has a name of its own. A thread writes, so that a slow drive holds up nothing else.
    """

    def __init__(self, tenant_files: TenantFiles, path: Path) -> None:
        self.path = path
        self.size_bytes = 0
        self.writing: asyncio.Future[None] | None = None
        self._tenant_files = tenant_files
        self._open = True
        self._pieces: list[bytes] = []
        self._piece_bytes = 0
        self._error: OSError | None = None
        self._file = path.open("xb")
        tenant_files.count_pending(1)

    def write(self, data: bytes) -> None:
        """Take a piece; while `writing` is set, better none. Raises TooLargeError, and StorageError where an
        earlier piece could not be written.
        """
        if self._error is not None:
            raise unusable(self._error) from self._error
        self._tenant_files.reserve(len(data))
        self.size_bytes += len(data)
        self._pieces.append(data)
        self._piece_bytes += len(data)
        if self._piece_bytes >= GROUP_BYTES and self.writing is None:
            self.writing = asyncio.get_running_loop().run_in_executor(None, self._write, self._take())
            self.writing.add_done_callback(self._written)

    def _take(self) -> list[bytes]:
        pieces, self._pieces, self._piece_bytes = self._pieces, [], 0
        return pieces

    def _write(self, pieces: list[bytes]) -> None:
        """In a thread."""
        try:
            self._file.writelines(pieces)
        except OSError as error:
            self._error = error

    def _written(self, _: asyncio.Future[None]) -> None:
        self.writing = None
        if not self._open:
            self._close()

    async def sync(self) -> None:
        """Put it on the drive. Raises StorageError."""
        while self.writing is not None:
            await asyncio.wait((self.writing,))
        await asyncio.to_thread(self._sync, self._take())
        if self._error is not None:
            raise unusable(self._error) from self._error

    def _sync(self, rest: list[bytes]) -> None:
        self._write(rest)
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            self._error = self._error or error

    def discard(self) -> None:
        """Forget it. May be called again."""
        if not self._open:
            return
        self._open = False
        self._pieces = []
        self._tenant_files.count_pending(-1)
        self._tenant_files.reserve(-self.size_bytes)
        self.path.unlink(missing_ok=True)
        if self.writing is None:
            self._close()

    def _close(self) -> None:
        try:
            self._file.close()
        except OSError as error:  # the last bytes did not fit: nobody wants them
            log.info("upload_dropped error=%s", error)


def unusable(error: OSError) -> StorageError:
    return StorageError(f"nothing can be stored now: {error.strerror or error}", code="storage_failed")
