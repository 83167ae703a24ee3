"""One client request at the engine, from submission to its end, whatever it is answered with."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from firelane.api.errors import describe
from firelane.errors import DeadlineError, FirelaneError, RequestError
from firelane.gateway.engines.in_flight import Sink
from firelane.gateway.http.exchange import retry_header
from firelane.gateway.requests.admission import Reservation
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.requests.usage_log import CLIENT_GONE, RequestOutcome
from firelane.gateway.tenants.tenant import Clock
from firelane.telemetry.traces import RequestTimes
from firelane.wire.frames import NewRequest

log = logging.getLogger(__name__)
SEQUENCE_COST = 1024
"""To make and submit a sequence, in tokens that are looked at: some 25 us."""
TURN_COST = 1 << 17
"""Some 3 ms."""


class TimeSlice:
    """Long work of one request on the event loop, cut so that other requests have their turns between its
    parts. What costs little stays in one turn of the loop.
    """

    def __init__(self) -> None:
        self._left = TURN_COST

    async def take(self, cost: int) -> None:
        """Account for what was done; lets others in where it was much."""
        self._left -= cost
        if self._left < 0:
            self._left = TURN_COST
            await asyncio.sleep(0)


@dataclass(slots=True, eq=False)
class SequenceStats:
    """Figures of one sequence. Times are 0 until they are known. cached_tokens are of its prompt, those from
    host memory, a drive and another engine among them; the prompt is counted for the first sequence of each
    prompt alone. accepted_drafts: generated tokens that had been drafted; rejected_drafts: as in Finished.
    """

    id: int
    prompt_tokens: int
    first_of_prompt: bool = True
    done: bool = False
    cached_tokens: int = 0
    host_tokens: int = 0
    disk_tokens: int = 0
    peer_tokens: int = 0
    generated: int = 0
    reasoning_tokens: int = 0
    accepted_drafts: int = 0
    rejected_drafts: int = 0
    planned_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0


NewSequence = tuple[SequenceStats, Sink, NewRequest]


class RequestRun:
    """A client request at the engine: its sequences report to it, it knows their figures alone. Owns the
    reservation from the first submission on. Ends once: by the end of its last sequence, `cancel` or `fail`.
    """

    def __init__(
        self, model: ServedModel, reservation: Reservation, num_sequences: int, session: bytes = b""
    ) -> None:
        """session: as in InFlight."""
        self.metrics = model.metrics
        self.exchange = reservation.exchange
        self.sequences: list[SequenceStats] = []
        self.closed = False
        self._timed = not reservation.background
        self.gaps = self.metrics.gaps if self._timed else self.metrics.unseen_gaps
        self._names = model.names
        self._engines, self._version = model.engines, model.weights
        self._running = model.running
        self._now_s = model.admission.usage.now_s
        self._reservation = reservation
        self._left = num_sequences
        self._due_s = self.exchange.request.due_s
        self._session = session

    def complete(self) -> None:
        """Respond, or end the stream: all sequences have ended well."""
        raise NotImplementedError

    def failure(self, body: bytes) -> bytes:
        """The event that ends a started stream; body: an error envelope."""
        raise NotImplementedError

    async def start(self, sequences: Iterator[NewSequence]) -> None:
        """Submit what the request begins with, some at a time, and wait in the queue with it. Raises
        EngineDeadError where not even the first could be submitted: the reservation is still the caller's.
        """
        first = next(sequences)
        self.submit(*first)
        self._reservation = self._reservation.pop()
        self.exchange.on_gone = self.cancel
        self._running.add(self.exchange.id, self)
        if self._timed:
            self._reservation.wait(self._time_out)
        try:
            await self._submit_rest(first, sequences)
        except FirelaneError as error:
            self.fail(error)
        except BaseException:
            self._close("error", 500)
            raise

    async def _submit_rest(self, first: NewSequence, sequences: Iterator[NewSequence]) -> None:
        time_slice = TimeSlice()
        await time_slice.take(_cost(first))
        while not self.closed and (new := next(sequences, None)) is not None:
            self.submit(*new)
            await time_slice.take(_cost(new))

    def submit(self, sequence: SequenceStats, sink: Sink, request: NewRequest) -> None:
        """Raises EngineDeadError."""
        self.sequences.append(sequence)
        self._engines.submit(request, sink, self._session, self._version)

    def _time_out(self, error: FirelaneError) -> None:
        """Fail, unless the engine has begun with it."""
        if not any(sequence.planned_s for sequence in self.sequences):
            self.fail(error)

    def started(self, sequence: SequenceStats) -> None:
        """The engine has begun with it."""
        if sequence.first_of_prompt:
            self.metrics.started(sequence.prompt_tokens, sequence.cached_tokens)

    def first_token(self, sequence: SequenceStats, now_s: float) -> None:
        if self._timed:
            self.metrics.first_token(now_s - self._reservation.arrived_s)
        self.started(sequence)

    def sequence_done(self, sequence: SequenceStats, reason: str, *, abort: bool = False) -> None:
        """`abort`: the engine still runs the sequence, which is no longer wanted."""
        if abort:
            self._engines.abort(sequence.id)
        self.metrics.ended(reason, self._lasted_s(), sequence.generated)
        if sequence.generated and self._timed:
            self.metrics.phases(
                queue_s=sequence.planned_s - self._reservation.arrived_s,
                prefill_s=sequence.first_s - sequence.planned_s,
                decode_s=sequence.last_s - sequence.first_s,
                generated_tokens=sequence.generated,
            )
        self._left -= 1
        if self._left == 0:
            self.closed = True
            self._settle(200, reason)
            self.metrics.responded(200)
            if self._due_s < math.inf:
                self.metrics.deadline("met" if time.monotonic() <= self._due_s else "late")
            self.complete()

    def cancel(self) -> None:
        """The client has gone: free its sequences."""
        self._close("abort", CLIENT_GONE)

    def fail(self, error: FirelaneError) -> None:
        """End with an error: as a status when nothing was sent yet, else as an event."""
        if self.closed:
            return
        status, body = describe(error)
        if not isinstance(error, RequestError):
            log.error("request_failed id=%s status=%d error=%r", self.exchange.id, status, str(error))
        self._close("error", status)
        if isinstance(error, DeadlineError):
            self.metrics.deadline("refused")
        self.metrics.responded(status)
        if self.exchange.started:
            self.exchange.send(self.failure(body))
            self.exchange.end()
        else:
            self.exchange.respond(status, body, headers=retry_header(error))

    def _close(self, reason: str, status: int) -> None:
        if self.closed:
            return
        self.closed = True
        for sequence in self.sequences:
            if not sequence.done:
                sequence.done = True
                self._engines.abort(sequence.id)
                self.metrics.ended(reason, self._lasted_s(), sequence.generated)
        self._settle(status, reason)

    def times(self) -> RequestTimes:
        """Until now."""
        return times_of(self.sequences, self._reservation.arrived_s, self._now_s)

    def _lasted_s(self) -> float | None:
        return self._now_s() - self._reservation.arrived_s if self._timed else None

    def _settle(self, status: int, reason: str) -> None:
        """Give back what the request held, and have it counted. Prompts that never started cost nothing."""
        times = self.times()
        self._running.remove(self.exchange.id, self)
        self.metrics.request_ended(max((one.generated for one in self.sequences), default=0))
        begun = [one for one in self.sequences if one.first_of_prompt and one.planned_s]
        self._reservation.close(
            RequestOutcome(
                status=status,
                reason=reason,
                names=self._names,
                prompt_tokens=sum(one.prompt_tokens for one in begun),
                cached_tokens=sum(one.cached_tokens for one in begun),
                generated_tokens=sum(one.generated for one in self.sequences),
                times=times,
            )
        )


def _cost(new: NewSequence) -> int:
    return SEQUENCE_COST + len(new[2].prompt) // 4


def times_of(sequences: Sequence[SequenceStats], arrived_s: float, now_s: Clock) -> RequestTimes:
    """Times of a request until now."""
    times = RequestTimes(arrived_s, now_s())
    for sequence in sequences:
        times.add(sequence.planned_s, sequence.first_s, sequence.last_s)
    return times
