"""One client request at the engine, from submission to its end, whatever it is answered with."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from firelane.api.errors import describe
from firelane.errors import FirelaneError, RequestError
from firelane.gateway.engines.recovery.in_flight import Sink
from firelane.gateway.http.exchange import retry_header
from firelane.gateway.requests.admission import Reservation
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.requests.turn import SEQUENCE_COST, TimeSlice
from firelane.gateway.requests.usage_log import CLIENT_GONE, RequestOutcome
from firelane.telemetry.traces import RequestTimes
from firelane.wire.frames import NewRequest

log = logging.getLogger(__name__)


class Sequence(Sink, Protocol):
    """A Sink with its figures. Times are 0 until they are known; cached_tokens are of its prompt, which is
    counted for the first sequence of each prompt alone.
    """

    id: int
    done: bool
    first_of_prompt: bool
    cached_tokens: int
    generated: int
    planned_s: float

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def first_s(self) -> float: ...

    @property
    def last_s(self) -> float: ...


SequenceT = TypeVar("SequenceT", bound=Sequence)


class Answer(Protocol[SequenceT]):
    """The client's side of a run."""

    def complete(self, run: RequestRun[SequenceT]) -> None:
        """Respond, or end the stream: all sequences have ended well."""
        ...

    def failure(self, body: bytes) -> bytes:
        """The event that ends a started stream; body: an error envelope."""
        ...


class RequestRun(Generic[SequenceT]):
    """Owns the sequences of a request, and its reservation from `start` on. Ends once: by the end of its last
    sequence, `cancel` or `fail`.
    """

    def __init__(
        self,
        model: ServedModel,
        reservation: Reservation,
        answer: Answer[SequenceT],
        num_sequences: int,
        session: bytes = b"",
    ) -> None:
        """session: as in InFlight."""
        self.metrics = model.metrics
        self.exchange = reservation.exchange
        self.sequences: list[SequenceT] = []
        self.closed = False
        self._timed = not reservation.background
        self.gaps = self.metrics.gaps if self._timed else self.metrics.unseen_gaps
        self._names = model.names
        self._engines = model.engines
        self._admission = model.admission
        self._now_s = model.admission.usage.now_s
        self._reservation = reservation
        self._answer = answer
        self._left = num_sequences
        self._session = session

    @property
    def began(self) -> bool:
        return any(sequence.planned_s for sequence in self.sequences)

    async def start(self, first: Iterable[tuple[SequenceT, NewRequest]]) -> None:
        """Submit what the request begins with, some at a time, and wait in the queue with it. Raises
        EngineDeadError where not even the first could be submitted; nothing is left of the run then.
        """
        turn = TimeSlice()
        try:
            for sequence, request in first:
                self.submit(sequence, request)
                self._join()
                await turn.take(SEQUENCE_COST + len(request.prompt) // 4)
                if self.closed:
                    return
        except BaseException as error:
            if not self._reservation.handed_over:
                self.sequences = []
                raise
            if not isinstance(error, FirelaneError):
                self._close("error", 500)
                raise
            self.fail(error)

    def _join(self) -> None:
        """With the first sequence."""
        if self._reservation.handed_over:
            return
        self._reservation.handed_over = True
        self.exchange.on_gone = self.cancel
        if self._timed:
            self._admission.joined(self, self._now_s())

    def submit(self, sequence: SequenceT, request: NewRequest) -> None:
        """Raises EngineDeadError."""
        self.sequences.append(sequence)
        self._engines.submit(request, sequence, self._session)

    def started(self, sequence: SequenceT) -> None:
        """The engine has begun with it."""
        if sequence.first_of_prompt:
            self.metrics.started(sequence.prompt_tokens, sequence.cached_tokens)

    def first_token(self, sequence: SequenceT, now_s: float) -> None:
        if self._timed:
            self.metrics.first_token(now_s - self._reservation.arrived_s)
        self.started(sequence)

    def sequence_done(self, sequence: SequenceT, reason: str, *, abort: bool = False) -> None:
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
            self._answer.complete(self)
            self.sequences = []  # they point to the run: else the garbage collector alone would free it

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
        self.metrics.responded(status)
        if self.exchange.started:
            self.exchange.send(self._answer.failure(body))
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
        self.sequences = []

    def times(self) -> RequestTimes:
        """Until now."""
        times = RequestTimes(self._reservation.arrived_s, self._now_s())
        for sequence in self.sequences:
            times.add(sequence.planned_s, sequence.first_s, sequence.last_s)
        return times

    def _lasted_s(self) -> float | None:
        return self._now_s() - self._reservation.arrived_s if self._timed else None

    def _settle(self, status: int, reason: str) -> None:
        """Give back what the request held, and have it counted. Prompts that never started cost nothing."""
        times = self.times()
        self.metrics.request_ended(max((one.generated for one in self.sequences), default=0))
        begun = [one for one in self.sequences if one.first_of_prompt and one.planned_s]
        self._admission.left(self)
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
