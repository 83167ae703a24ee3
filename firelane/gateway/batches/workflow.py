"""The life of one batch, step by step: validate, job, finalise. Each step is such that a crash in it leads
back to its beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from msgspec.structs import replace

from firelane.api.stored.batches import BatchErrors
from firelane.gateway.batches.input import Scan, scan
from firelane.gateway.batches.job import BatchJob
from firelane.gateway.batches.records import ERRORS, INPUT, OUTPUT, BatchRecord, BatchRecords, Ending, clear
from firelane.gateway.batches.runner import BatchRunner
from firelane.gateway.files.store import FileStore

log = logging.getLogger(__name__)
GROUP_S = 0.2
"""Results that come within it reach the drive together."""
RETRY_S = 10.0
"""Seconds before a step is tried again that the drive has refused."""


class BatchHandle:
    """Handle of one batch that has not ended. `cancel` ends the work on its lines: it was cancelled, has
    expired, or the server ends.
    """

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.job: BatchJob | None = None
        self.timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        self.cancelled.set()
        if self.job is not None:
            self.job.over.set()


class BatchWorkflow:
    """Takes batches to their ends. Those of one tenant wait for each other before they run. `ending` is set
    when the server ends: batches are left as they are.
    """

    def __init__(
        self,
        records: BatchRecords,
        files: FileStore,
        runner: BatchRunner,
        *,
        line_bytes: int,
        clock: Callable[[], float],
        ending: asyncio.Event,
    ) -> None:
        self._records = records
        self._files = files
        self._runner = runner
        self._line_bytes = line_bytes
        self._clock = clock
        self._ending = ending
        self._turns: dict[str, asyncio.Lock] = {}

    async def carry_out(self, batch_id: str, handle: BatchHandle) -> None:
        """From where it is to its end, or to the server's. Raises OSError and FirelaneError where the drive
        refuses: to be tried again.
        """
        record = self._records[batch_id]
        if record.ending is None:
            if record.batch.status == "validating" and not await self._validate(batch_id):
                return
            ending = await self._run(batch_id, handle)
            if ending is None:
                return
            await self._save_ending(batch_id, ending)
        await self._finalise(batch_id)

    async def _scan(self, batch_id: str) -> Scan:
        path = self._records.path(batch_id) / INPUT
        return await scan(path, self._records[batch_id].batch.endpoint, self._line_bytes)

    async def _validate(self, batch_id: str) -> bool:
        """False: the input is not good, and the batch has ended."""
        lines = await self._scan(batch_id)
        record, now = self._records[batch_id], int(self._clock())
        batch = record.batch
        if not lines.errors:
            counts = replace(batch.request_counts, total=len(lines))
            batch = replace(batch, request_counts=counts)
            if batch.status == "validating":
                batch = replace(batch, status="in_progress", in_progress_at=now)
            await self._records.save(replace(record, batch=batch))
            return True
        batch = replace(batch, errors=BatchErrors(data=lines.errors))
        if batch.status == "cancelling":
            batch = replace(batch, status="cancelled", cancelled_at=now)
        else:
            batch = replace(batch, status="failed", failed_at=now)
        await self._end(replace(record, batch=batch))
        return False

    async def _run(self, batch_id: str, handle: BatchHandle) -> Ending | None:
        """Run the lines, when the tenant's earlier batches have ended. None: the server ends first."""
        record = self._records[batch_id]
        turn = self._turns.setdefault(record.tenant, asyncio.Lock())
        mine = await _acquire(turn, handle.cancelled)
        try:
            if self._ending.is_set():
                return None
            lines = await self._scan(batch_id)
            if lines.errors:  # cancelled before it was looked at
                return "cancelled"
            directory = self._records.path(batch_id)
            job = handle.job = await BatchJob.open(tenant=record.tenant, directory=directory, lines=lines)
            try:
                return await self._work(batch_id, handle, job)
            finally:
                handle.job = None
                job.close()
        finally:
            if mine:
                turn.release()

    async def _work(self, batch_id: str, handle: BatchHandle, job: BatchJob) -> Ending | None:
        self._show_progress(batch_id, job)
        if not (job.complete or handle.cancelled.is_set()):
            await self._run_lines(batch_id, job)
        while not await self._flush(batch_id, job) and not self._ending.is_set():
            await wait_for(self._ending, RETRY_S)
        if self._ending.is_set():
            return None
        if job.complete:
            return "completed"
        ending: Ending = "cancelled" if self._records[batch_id].batch.status == "cancelling" else "expired"
        await self._save_ending(batch_id, ending)  # before lines say so: a crash must not make it "completed"
        await job.give_up(ending)
        self._show_progress(batch_id, job)
        return ending

    async def _run_lines(self, batch_id: str, job: BatchJob) -> None:
        self._runner.add(job)
        try:
            while not job.over.is_set():
                await wait_for(job.over, GROUP_S)
                if not await self._flush(batch_id, job):
                    await wait_for(job.over, RETRY_S)
        finally:
            self._runner.remove(job)

    async def _flush(self, batch_id: str, job: BatchJob) -> bool:
        """False: the drive refuses. What has been computed is kept and tried again."""
        self._show_progress(batch_id, job)
        try:
            await job.results.flush()
        except OSError as error:
            log.error("batch_results_not_written id=%s error=%s", batch_id, error)
            return False
        return True

    def _show_progress(self, batch_id: str, job: BatchJob) -> None:
        record, tally = self._records[batch_id], job.results.tally
        batch = replace(record.batch, request_counts=tally.counts, usage=tally.usage)
        self._records.show(replace(record, batch=batch))

    async def _save_ending(self, batch_id: str, ending: Ending) -> None:
        record, now = self._records[batch_id], int(self._clock())
        batch = record.batch
        if batch.status != "cancelling":
            batch = replace(batch, status="finalizing", finalizing_at=batch.finalizing_at or now)
        await self._records.save(replace(record, batch=batch, ending=ending))

    async def _finalise(self, batch_id: str) -> None:
        """Hand the results to the tenant's files."""
        output = await self._publish(batch_id, OUTPUT, "o", "output")
        errors = await self._publish(batch_id, ERRORS, "e", "error")
        record, now = self._records[batch_id], int(self._clock())
        ending = record.ending or "completed"
        times = {f"{ending}_at": now}
        batch = replace(record.batch, status=ending, output_file_id=output, error_file_id=errors, **times)
        await self._end(replace(record, batch=batch))

    async def _publish(self, batch_id: str, name: str, mark: str, kind: str) -> str | None:
        """The id of the file that `name` has become, None where it is empty."""
        record, path = self._records[batch_id], self._records.path(batch_id) / name
        size_bytes = path.stat().st_size if path.exists() else 0
        if not size_bytes:
            return None
        tenant_files = self._files.tenant_files(record.tenant)
        file = tenant_files.describe(
            size_bytes=size_bytes,
            name=f"{batch_id}_{kind}.jsonl",
            purpose="batch_output",
            expires_s=record.output_expires_s,
            file_id=f"file-{batch_id.removeprefix('batch_')}{mark}",
        )
        if not tenant_files.has(file.id):
            await asyncio.to_thread(tenant_files.publish, path, file)
            tenant_files.show(file)
        return file.id

    async def _end(self, record: BatchRecord) -> None:
        await self._records.save(record)
        await asyncio.to_thread(clear, self._records.path(record.id))
        await self._records.forget_oldest(record.tenant)
        log.info("batch_ended id=%s status=%s", record.id, record.batch.status)


async def wait_for(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


async def _acquire(lock: asyncio.Lock, cancelled: asyncio.Event) -> bool:
    """Wait for the lock. False when `cancelled` came first."""
    if cancelled.is_set():
        return False
    tries = asyncio.ensure_future(lock.acquire())
    stops = asyncio.ensure_future(cancelled.wait())
    await asyncio.wait((tries, stops), return_when=asyncio.FIRST_COMPLETED)
    stops.cancel()
    if not tries.done():
        tries.cancel()
        await asyncio.wait((tries,))
    return not tries.cancelled()
