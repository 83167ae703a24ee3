"""Batches from their creation to their end: validate, run, finalise, each step so that a crash in it leads
back to its beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from firelane.api.batches import OPEN, Batch, BatchErrors, BatchRequest
from firelane.errors import FirelaneError, NotFoundError, QueueFullError, RequestError
from firelane.gateway.batches.input import Scan, scan
from firelane.gateway.batches.records import ERRORS, INPUT, OUTPUT, BatchRecord, BatchRecords, Ending, clear
from firelane.gateway.batches.run import Run
from firelane.gateway.batches.runner import Runner
from firelane.gateway.files.data_dir import DataDir
from firelane.gateway.files.durable import link_whole
from firelane.gateway.files.store import FileStore, unusable

log = logging.getLogger(__name__)
GROUP_S = 0.2
"""Results that come within it reach the drive together."""
RETRY_S = 10.0
"""How soon a step is tried again that the drive has refused."""
PAUSE_S = 5.0
LOCK_S = 2.0


class Life:
    """What keeps one batch going. `halt` ends the work on its lines: it was cancelled, has expired, or the
    server ends.
    """

    def __init__(self) -> None:
        self.halted = asyncio.Event()
        self.run: Run | None = None
        self.timer: asyncio.TimerHandle | None = None

    def halt(self) -> None:
        self.halted.set()
        if self.run is not None:
            self.run.over.set()


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
        self._runner: Runner | None = None
        self._lives: dict[str, Life] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._runner_task: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()

    @property
    def open(self) -> int:
        """Batches that have not ended."""
        return len(self._lives)

    @property
    def lines_in_flight(self) -> int:
        return sum(life.run.in_flight for life in self._lives.values() if life.run is not None)

    async def start(self, runner: Runner) -> None:
        """Take up what an earlier server has left: now, or when the server that holds the directory ends."""
        self._runner = runner
        if self._data.path is None:
            return
        if self._data.acquire():
            await self._resume(runner)
        else:
            log.warning("data_dir_not_available dir=%s: files and batches have to wait", self._data.path)
            self._spawn(self._resume_later(runner))

    async def _resume_later(self, runner: Runner) -> None:
        while not self._ending.is_set():
            if self._data.acquire():
                await self._resume(runner)
                return
            await wait_for(self._ending, LOCK_S)

    async def _resume(self, runner: Runner) -> None:
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
        shelf = self._files.shelf(tenant)
        try:
            file = shelf.get(file_id)
        except NotFoundError as error:
            raise RequestError(str(error), param="input_file_id", code=error.code) from None
        if file.purpose != "batch":
            raise RequestError(
                f"`input_file_id` names a file of purpose '{file.purpose}': upload one of purpose 'batch'",
                param="input_file_id",
            )
        return shelf.content(file_id)

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
        if batch_id in self._lives:
            self._lives[batch_id].halt()
        return batch

    # The life of a batch.

    def _begin(self, record: BatchRecord) -> None:
        life = self._lives[record.id] = Life()
        left_s = max(0.0, record.batch.expires_at - self._clock())
        life.timer = asyncio.get_running_loop().call_later(left_s, life.halt)
        if record.batch.status == "cancelling":
            life.halt()
        self._spawn(self._live(record.id, life))

    async def _live(self, batch_id: str, life: Life) -> None:
        while not self._ending.is_set():
            try:
                await self._carry_out(batch_id, life)
                break
            except (OSError, FirelaneError) as error:
                log.error("batch_held id=%s error=%s: it is tried again", batch_id, error)
            except Exception:
                log.exception("batch_failed_unexpectedly id=%s: it is tried again", batch_id)
            await wait_for(self._ending, RETRY_S)
        if life.timer is not None:
            life.timer.cancel()
        del self._lives[batch_id]

    async def _carry_out(self, batch_id: str, life: Life) -> None:
        record = self.records[batch_id]
        if record.ending is None:
            if record.batch.status == "validating" and not await self._validate(batch_id):
                return
            ending = await self._run(batch_id, life)
            if ending is None:
                return
            await self._save_ending(batch_id, ending)
        await self._finalise(batch_id)

    async def _scan(self, batch_id: str) -> Scan:
        path = self.records.path(batch_id) / INPUT
        return await scan(path, self.records[batch_id].batch.endpoint, self._line_bytes)

    async def _validate(self, batch_id: str) -> bool:
        """False: the input is not good, and the batch has ended."""
        lines = await self._scan(batch_id)
        record, now = self.records[batch_id], int(self._clock())
        batch = record.batch
        if not lines.errors:
            counts = replace(batch.request_counts, total=len(lines))
            batch = replace(batch, request_counts=counts)
            if batch.status == "validating":
                batch = replace(batch, status="in_progress", in_progress_at=now)
            await self.records.save(replace(record, batch=batch))
            return True
        batch = replace(batch, errors=BatchErrors(data=lines.errors))
        if batch.status == "cancelling":
            batch = replace(batch, status="cancelled", cancelled_at=now)
        else:
            batch = replace(batch, status="failed", failed_at=now)
        await self._end(replace(record, batch=batch))
        return False

    async def _run(self, batch_id: str, life: Life) -> Ending | None:
        """Run the lines, when the tenant's earlier batches have ended. None: the server ends first."""
        record = self.records[batch_id]
        turn = self._turns.setdefault(record.tenant, asyncio.Lock())
        mine = await _acquire(turn, life.halted)
        try:
            if self._ending.is_set():
                return None
            lines = await self._scan(batch_id)
            if lines.errors:  # cancelled before it was looked at
                return "cancelled"
            directory = self.records.path(batch_id)
            run = life.run = await Run.open(tenant=record.tenant, directory=directory, lines=lines)
            try:
                return await self._work(batch_id, life, run)
            finally:
                life.run = None
                run.close()
        finally:
            if mine:
                turn.release()

    async def _work(self, batch_id: str, life: Life, run: Run) -> Ending | None:
        self._show_progress(batch_id, run)
        if not (run.complete or life.halted.is_set()):
            await self._run_lines(batch_id, run)
        while not await self._flush(batch_id, run) and not self._ending.is_set():
            await wait_for(self._ending, RETRY_S)
        if self._ending.is_set():
            return None
        if run.complete:
            return "completed"
        ending: Ending = "cancelled" if self.records[batch_id].batch.status == "cancelling" else "expired"
        await self._save_ending(batch_id, ending)  # before lines say so: a crash must not make it "completed"
        await run.give_up(ending)
        self._show_progress(batch_id, run)
        return ending

    async def _run_lines(self, batch_id: str, run: Run) -> None:
        assert self._runner is not None
        self._runner.add(run)
        try:
            while not run.over.is_set():
                await wait_for(run.over, GROUP_S)
                if not await self._flush(batch_id, run):
                    await wait_for(run.over, RETRY_S)
        finally:
            self._runner.remove(run)

    async def _flush(self, batch_id: str, run: Run) -> bool:
        """False: the drive refuses. What has been computed is kept and tried again."""
        self._show_progress(batch_id, run)
        try:
            await run.results.flush()
        except OSError as error:
            log.error("batch_results_not_written id=%s error=%s", batch_id, error)
            return False
        return True

    def _show_progress(self, batch_id: str, run: Run) -> None:
        record, tally = self.records[batch_id], run.results.tally
        batch = replace(record.batch, request_counts=tally.counts, usage=tally.usage)
        self.records.show(replace(record, batch=batch))

    async def _save_ending(self, batch_id: str, ending: Ending) -> None:
        record, now = self.records[batch_id], int(self._clock())
        batch = record.batch
        if batch.status != "cancelling":
            batch = replace(batch, status="finalizing", finalizing_at=batch.finalizing_at or now)
        await self.records.save(replace(record, batch=batch, ending=ending))

    async def _finalise(self, batch_id: str) -> None:
        """Hand the results to the tenant's files."""
        output = await self._publish(batch_id, OUTPUT, "o", "output")
        errors = await self._publish(batch_id, ERRORS, "e", "error")
        record, now = self.records[batch_id], int(self._clock())
        ending = record.ending or "completed"
        times = {f"{ending}_at": now}
        batch = replace(record.batch, status=ending, output_file_id=output, error_file_id=errors, **times)
        await self._end(replace(record, batch=batch))

    async def _publish(self, batch_id: str, name: str, mark: str, kind: str) -> str | None:
        """The id of the file that `name` has become, None where it is empty."""
        record, path = self.records[batch_id], self.records.path(batch_id) / name
        size_bytes = path.stat().st_size if path.exists() else 0
        if not size_bytes:
            return None
        shelf = self._files.shelf(record.tenant)
        file = shelf.describe(
            size_bytes=size_bytes,
            name=f"{batch_id}_{kind}.jsonl",
            purpose="batch_output",
            expires_s=record.output_expires_s,
            file_id=f"file-{batch_id.removeprefix('batch_')}{mark}",
        )
        if not shelf.has(file.id):
            await asyncio.to_thread(shelf.publish, path, file)
            shelf.show(file)
        return file.id

    async def _end(self, record: BatchRecord) -> None:
        await self.records.save(record)
        await asyncio.to_thread(clear, self.records.path(record.id))
        await self.records.forget_oldest(record.tenant)
        log.info("batch_ended id=%s status=%s", record.id, record.batch.status)

    # The end of the server.

    async def pause(self) -> None:
        """Break off the lines under way, keep what is done, and stop. The next server goes on from there."""
        self._ending.set()
        for life in self._lives.values():
            life.halt()
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


async def wait_for(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


async def _acquire(lock: asyncio.Lock, halted: asyncio.Event) -> bool:
    """Wait for the lock. False when `halted` came first."""
    if halted.is_set():
        return False
    tries = asyncio.ensure_future(lock.acquire())
    halts = asyncio.ensure_future(halted.wait())
    await asyncio.wait((tries, halts), return_when=asyncio.FIRST_COMPLETED)
    halts.cancel()
    if not tries.done():
        tries.cancel()
        await asyncio.wait((tries,))
    return not tries.cancelled()


def _make_directory(path: Path, source: Path) -> None:
    path.mkdir()
    link_whole(source, path / INPUT)
