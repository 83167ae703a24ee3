"""Batches on the drive: DIR/batches/ID/batch.json beside the batch's other files, all of them in memory."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
from pathlib import Path
from typing import Literal

import msgspec

from firelane.api.stored.batches import OPEN, Batch
from firelane.errors import NotFoundError, StorageError
from firelane.gateway.files.data_dir import DataDir
from firelane.storage import remove_leftovers, sync_directory, write_whole

log = logging.getLogger(__name__)
BATCH_ID = re.compile(r"batch_[0-9a-f]{24}", re.ASCII)
MAX_ENDED = 1000
"""Ended batches that are kept for one tenant; the oldest are forgotten."""
INPUT, OUTPUT, ERRORS = "input.jsonl", "output.jsonl", "errors.jsonl"
"""Files of a batch that has not ended."""
Ending = Literal["completed", "expired", "cancelled"]


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """created_ns: Unix time, for the order. output_expires_s: how long its output and error file are kept,
    None: until deleted. ending: set when the batch stops running lines.
    """

    tenant: str
    batch: Batch
    created_ns: int
    output_expires_s: int | None = None
    ending: Ending | None = None

    @property
    def id(self) -> str:
        return self.batch.id


class BatchRecords:
    """All batches, oldest first. A change is seen at once and durable when `save` returns."""

    def __init__(self, data: DataDir) -> None:
        self._data = data
        self._records: dict[str, BatchRecord] = {}
        self._loaded = False
        self._saving = asyncio.Lock()

    def load(self) -> list[BatchRecord]:
        """Read what lies on the drive. Blocks; for a thread, before anything else is called. The batches that
        have not ended, oldest first.
        """
        root = self._data.root / "batches"
        root.mkdir(parents=True, exist_ok=True)
        found = [record for path in root.iterdir() if BATCH_ID.fullmatch(path.name) for record in _read(path)]
        found.sort(key=lambda record: record.created_ns)
        self._records = {record.id: record for record in found}
        self._loaded = True
        return [record for record in found if record.batch.status in OPEN]

    def _check_loaded(self) -> None:
        _ = self._data.root  # says why, where there is none
        if not self._loaded:
            raise StorageError("the batches are being read: try again soon", code="no_storage")

    def path(self, batch_id: str) -> Path:
        """The directory of a known batch, or of one that is being made."""
        return self._data.root / "batches" / batch_id

    def of(self, tenant: str) -> list[Batch]:
        """Raises StorageError while the data directory is not held."""
        self._check_loaded()
        return [record.batch for record in self._records.values() if record.tenant == tenant]

    def get(self, tenant: str, batch_id: str) -> BatchRecord:
        """Raises NotFoundError, for another tenant's batch too."""
        record = self.find(tenant, batch_id)
        if record is None:
            raise NotFoundError(
                f"there is no batch {batch_id[:80]!r}", param="batch_id", code="batch_not_found"
            )
        return record

    def find(self, tenant: str, batch_id: str) -> BatchRecord | None:
        """None also for another tenant's batch. Raises StorageError while the data directory is not held."""
        self._check_loaded()
        record = self._records.get(batch_id)
        return record if record is not None and record.tenant == tenant else None

    def __getitem__(self, batch_id: str) -> BatchRecord:
        return self._records[batch_id]

    def show(self, record: BatchRecord) -> None:
        """Change what clients see. What is not saved is lost with the server."""
        self._records[record.id] = record

    async def save(self, record: BatchRecord) -> None:
        """Change it, and write it. Raises OSError."""
        self.show(record)
        async with self._saving:
            latest = self._records[record.id]
            path = self.path(record.id) / "batch.json"
            await asyncio.to_thread(write_whole, path, msgspec.json.encode(latest), durable=True)

    async def forget_oldest(self, tenant: str) -> None:
        """Keep the number of ended batches bounded."""
        ended = [r for r in self._records.values() if r.tenant == tenant and r.batch.status not in OPEN]
        for record in ended[: max(0, len(ended) - MAX_ENDED)]:
            await self.forget(record)

    async def forget(self, record: BatchRecord) -> None:
        """An ended batch is known no more."""
        if self._records.pop(record.id, None) is not None:
            await asyncio.to_thread(_remove, self.path(record.id))


def clear(path: Path) -> None:
    """Remove what an ended batch does not need."""
    for name in (INPUT, OUTPUT, ERRORS):
        (path / name).unlink(missing_ok=True)


def _read(path: Path) -> list[BatchRecord]:
    """The batch of one directory, if there is one."""
    description = path / "batch.json"
    remove_leftovers(description)
    try:
        record = msgspec.json.decode(description.read_bytes(), type=BatchRecord)
    except FileNotFoundError:
        shutil.rmtree(path)  # a crash before the client was told of it
        return []
    except (msgspec.DecodeError, OSError) as error:
        log.error("batch_unreadable path=%s error=%s", path, error)
        return []
    if record.batch.status not in OPEN:
        clear(path)
    return [record]


def _remove(path: Path) -> None:
    """The description first: a directory without one is removed at the next start."""
    (path / "batch.json").unlink(missing_ok=True)
    sync_directory(path)
    shutil.rmtree(path, ignore_errors=True)
