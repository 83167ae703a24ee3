"""The batches of a server: made and cancelled by clients, taken up again after a restart."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from firelane.api.stored.batches import OPEN, Batch, BatchRequest
from firelane.errors import FirelaneError, NotFoundError, QueueFullError, RequestError
from firelane.gateway.batches.records import INPUT, BatchRecord, BatchRecords
from firelane.gateway.batches.runner import BatchRunner
from firelane.gateway.batches.workflow import RETRY_S, BatchHandle, BatchWorkflow, wait_for
from firelane.gateway.files.data_dir import DataDir
from firelane.gateway.files.store import FileStore, unusable
from firelane.storage import link_whole

log = logging.getLogger(__name__)
PAUSE_S = 5.0
LOCK_S = 2.0


class Batches:
    """All batches of a server. One of each tenant runs at a time, in the order of their creation."""

    def __init__(
        self,
        data: DataDir,
        files: FileStore,
        *,
        line_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """line_bytes: the longest line of an input file. clock: Unix time."""
        self.records = BatchRecords(data)
        self._data = data
        self._files = files
        self._line_bytes = line_bytes
        self._clock = clock
        self._workflow: BatchWorkflow | None = None
        self._handles: dict[str, BatchHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._runner_task: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()

    @property
    def open(self) -> int:
        """Batches that have not ended."""
        return len(self._handles)

    @property
    def lines_in_flight(self) -> int:
        return sum(handle.job.in_flight for handle in self._handles.values() if handle.job is not None)

    async def start(self, runner: BatchRunner) -> None:
        """Take up what an earlier server has left, or this one before `close`: now, or when the server that
        holds the directory ends."""
        self._ending.clear()
        self._workflow = BatchWorkflow(
            self.records,
            self._files,
            runner,
            line_bytes=self._line_bytes,
            clock=self._clock,
            ending=self._ending,
        )
        if self._data.path is None:
            return
        if self._data.acquire():
            await self._resume(runner)
        else:
            log.warning("data_dir_not_available dir=%s: files and batches have to wait", self._data.path)
            self._spawn(self._resume_later(runner))

    async def _resume_later(self, runner: BatchRunner) -> None:
        while not self._ending.is_set():
            if self._data.acquire():
                await self._resume(runner)
                return
            await wait_for(self._ending, LOCK_S)

    async def _resume(self, runner: BatchRunner) -> None:
        self._runner_task = asyncio.get_running_loop().create_task(runner.work())
        try:
            left = await asyncio.to_thread(self.records.load)
        except OSError as error:
            log.error("batches_unreadable error=%s", error)
            return
        for record in left:
            self._begin(record)
        if left:
            log.info("batches_resumed count=%d", len(left))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Asked by clients.

    async def create(self, tenant: str, request: BatchRequest) -> Batch:
        """Raises RequestError."""
        window_s = request.window_s()
        if (
            sum(batch.status in OPEN for batch in self.records.of(tenant))
            >= self._files.limits.tenant_batches
        ):
            raise QueueFullError(f"{self._files.limits.tenant_batches} batches have not ended: wait for one")
        source = self._input(tenant, request.input_file_id)
        now = self._clock()
        batch = Batch(
            id=f"batch_{secrets.token_hex(12)}",
            endpoint=request.endpoint,
            input_file_id=request.input_file_id,
            completion_window=request.completion_window,
            created_at=int(now),
            expires_at=int(now) + window_s,
            metadata=request.metadata,
        )
        expires = request.output_expires_after
        record = BatchRecord(
            tenant=tenant,
            batch=batch,
            created_ns=int(now * 1e9),
            output_expires_s=None if expires is None else expires.seconds,
        )
        try:
            await asyncio.to_thread(_make_directory, self.records.path(batch.id), source)
            await self.records.save(record)
        except OSError as error:
            raise unusable(error) from error
        if not self._ending.is_set():
            self._begin(record)
        return batch

    def _input(self, tenant: str, file_id: str) -> Path:
        tenant_files = self._files.tenant_files(tenant)
        try:
            file = tenant_files.get(file_id)
        except NotFoundError as error:
            raise RequestError(str(error), param="input_file_id", code=error.code) from None
        if file.purpose != "batch":
            raise RequestError(
                f"`input_file_id` names a file of purpose '{file.purpose}': upload one of purpose 'batch'",
                param="input_file_id",
            )
        return tenant_files.content(file_id)

    async def cancel(self, tenant: str, batch_id: str) -> Batch:
        """Raises RequestError on a batch that has ended or is about to."""
        record = self.records.get(tenant, batch_id)
        status = record.batch.status
        if status == "cancelling":
            return record.batch
        if status not in ("validating", "in_progress"):
            raise RequestError(f"the batch is {status}: there is nothing to cancel", param="batch_id")
        batch = replace(record.batch, status="cancelling", cancelling_at=int(self._clock()))
        try:
            await self.records.save(replace(record, batch=batch))
        except OSError as error:
            raise unusable(error) from error
        if batch_id in self._handles:
            self._handles[batch_id].cancel()
        return batch

    # The life of a batch.

    def _begin(self, record: BatchRecord) -> None:
        handle = self._handles[record.id] = BatchHandle()
        left_s = max(0.0, record.batch.expires_at - self._clock())
        handle.timer = asyncio.get_running_loop().call_later(left_s, handle.cancel)
        if record.batch.status == "cancelling":
            handle.cancel()
        self._spawn(self._live(record.id, handle))

    async def _live(self, batch_id: str, handle: BatchHandle) -> None:
        assert self._workflow is not None
        while not self._ending.is_set():
            try:
                await self._workflow.carry_out(batch_id, handle)
                break
            except (OSError, FirelaneError) as error:
                log.error("batch_held id=%s error=%s: it is tried again", batch_id, error)
            except Exception:
                log.exception("batch_failed_unexpectedly id=%s: it is tried again", batch_id)
            await wait_for(self._ending, RETRY_S)
        if handle.timer is not None:
            handle.timer.cancel()
        del self._handles[batch_id]

    # The end of the server.

    async def pause(self) -> None:
        """Break off the lines under way, keep what is done, and stop. The next server goes on from there."""
        self._ending.set()
        for handle in self._handles.values():
            handle.cancel()
        if self._runner_task is not None:
            self._runner_task.cancel()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=PAUSE_S)
            for task in late:
                task.cancel()

    async def close(self) -> None:
        """Pause, and let another server have the directory. Nothing of this one must use it from here on."""
        await self.pause()
        self._data.release()


def _make_directory(path: Path, source: Path) -> None:
    path.mkdir()
    link_whole(source, path / INPUT)
