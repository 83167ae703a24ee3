"""One batch at work: which line is next, which are under way, what became of them."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import msgspec

from firelane.api.stored.batches import InputLine, LineError, LineResponse, ResultLine
from firelane.gateway.batches.input import Input, Scan
from firelane.gateway.batches.item_exchange import ItemAnswer, ItemExchange
from firelane.gateway.batches.records import INPUT, Ending
from firelane.gateway.batches.results import Results
from firelane.gateway.requests.models import ServedModel

MAX_WAITING_BYTES = 64 << 20
"""Results that the drive has not taken yet; more lines are not started."""
RETRIES = 3
"""The number of times that a line runs again that the server could not serve (503)."""
MAX_WAIT_S = 60.0
LINES_PER_GROUP = 256
_UNRUN: dict[Ending, LineError] = {
    "expired": LineError(
        code="batch_expired",
        message="This request could not be executed before the completion window expired.",
    ),
    "cancelled": LineError(
        code="batch_cancelled", message="This request was not executed: the batch was cancelled."
    ),
}


@dataclass(slots=True)
class BatchItem:
    """number: from 0, of the requests of the file. failures: answers that the server could not serve it.
    model: the one that it wants, known when it starts.
    """

    number: int
    failures: int = 0
    model: ServedModel | None = None
    exchange: ItemExchange | None = None


class BatchJob:
    """Owns the batch's open files. `over` is set when each line has a result, or by whoever stops it."""

    def __init__(self, *, tenant: str, source: Input, results: Results) -> None:
        self.tenant = tenant
        self.over = asyncio.Event()
        self.results = results
        self._source = source
        self._custom_ids = list(source.lines.numbers)
        self._next = 0
        self._again: deque[BatchItem] = deque()
        self._under_way: dict[int, BatchItem] = {}
        self._pause_ends_s = 0.0
        self._look_for_end()

    @classmethod
    async def open(cls, *, tenant: str, directory: Path, lines: Scan) -> BatchJob:
        """With what earlier servers have done of it. Raises OSError."""
        results = await asyncio.to_thread(Results, directory, lines)
        return cls(tenant=tenant, source=Input(directory / INPUT, lines), results=results)

    @property
    def in_flight(self) -> int:
        return len(self._under_way)

    def in_flight_of(self, model: ServedModel) -> int:
        return sum(item.model is model for item in self._under_way.values())

    def _look_for_end(self) -> None:
        if self.complete:
            self.over.set()

    @property
    def complete(self) -> bool:
        """Each line has a result."""
        return len(self.results.tally.done) == len(self._source.lines)

    def take(self, now_s: float) -> BatchItem | None:
        """The next line to start, None where none may start now."""
        if self.over.is_set() or now_s < self._pause_ends_s:
            return None
        if self.results.waiting_bytes > MAX_WAITING_BYTES:
            return None
        item = self._again.popleft() if self._again else self._fresh()
        if item is not None and not self._may_join(item):
            self._again.appendleft(item)
            return None
        if item is not None:
            self._under_way[item.number] = item
        return item

    def _may_join(self, item: BatchItem) -> bool:
        """A line that the server could not serve runs alone: it may be what kills engines, and costs no other
        line a try then."""
        return not self._under_way or not (item.failures or any(i.failures for i in self._under_way.values()))

    def _fresh(self) -> BatchItem | None:
        total, done = len(self._source.lines), self.results.tally.done
        while self._next < total and self._next in done:
            self._next += 1
        if self._next == total:
            return None
        self._next += 1
        return BatchItem(self._next - 1)

    def read(self, item: BatchItem) -> InputLine:
        """Its request. Raises OSError."""
        return self._source.read(item.number)

    def put_back(self, item: BatchItem) -> None:
        """It did not start."""
        del self._under_way[item.number]
        self._again.appendleft(item)

    def answered(self, item: BatchItem, answer: ItemAnswer, now_s: float) -> None:
        """Keep the answer, or the line for later where the server could not serve it."""
        if answer.status == 503:
            item.failures += 1
        if answer.status == 429 or (answer.status == 503 and item.failures <= RETRIES):
            self._pause_ends_s = now_s + min(max(answer.retry_after_s, 1), MAX_WAIT_S)
            self.put_back(item)
            return
        del self._under_way[item.number]
        response = LineResponse(
            status_code=answer.status,
            request_id=item.exchange.id if item.exchange is not None else "",
            body=msgspec.Raw(answer.body),
        )
        self._keep(item.number, response=response, completed=200 <= answer.status < 300)

    def _keep(
        self,
        number: int,
        *,
        response: LineResponse | None = None,
        error: LineError | None = None,
        completed: bool = False,
    ) -> None:
        result = ResultLine(
            id=f"batch_req_{secrets.token_hex(12)}",
            custom_id=self._custom_ids[number],
            response=response,
            error=error,
        )
        self.results.take(number, result, completed=completed)
        self._look_for_end()

    def discard_items(self) -> None:
        """Break off what is under way; it counts as never started."""
        for item in list(self._under_way.values()):
            self.put_back(item)
            if item.exchange is not None:
                item.exchange.discard()

    async def give_up(self, ending: Ending) -> None:
        """Write why the lines without a result have none: the batch has expired or was cancelled. Raises
        OSError.
        """
        for number in range(len(self._source.lines)):
            if number not in self.results.tally.done:
                self._keep(number, error=_UNRUN[ending])
            if number % LINES_PER_GROUP == 0:
                await self.results.flush()
        await self.results.flush()

    def close(self) -> None:
        self._source.close()
        self.results.close()
