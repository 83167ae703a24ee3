"""Admission: room in a model's queue and a share of the tenant's quota, held by one Reservation from before
any text is rendered to the end of the request.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Generator
from copy import copy
from types import TracebackType

from firelane.errors import EngineDeadError, FirelaneError, QueueFullError, QueueTimeoutError, RequestError
from firelane.gateway.http.exchange import Exchange
from firelane.gateway.requests.usage_log import RequestOutcome, UsageLog
from firelane.gateway.tenants.counts import CountRecord, Counts, LocalCounts
from firelane.gateway.tenants.registry import Tenants
from firelane.gateway.tenants.tenant import UNLIMITED, TenantQuota

QUEUE_SHARE = 8
HELD, EARLY, BACKGROUND = 0, 2, 3
"""Figures of a process in the record of a model. (One that is killed gives back figure 1 to a bucket.)"""


class Reservation:
    """Room for `sequences` and a part of the tenant's quota, which one owner gives back once: by `release`,
    as the context manager does, or by `close`. `pop` passes it on to another owner.
    """

    __slots__ = (
        *("_controller", "_held_tokens", "_open", "_quota"),
        *("arrived_s", "background", "exchange", "sequences", "tenant"),
    )

    def __init__(
        self, controller: AdmissionController, exchange: Exchange, quota: TenantQuota, sequences: int
    ) -> None:
        self.exchange = exchange
        self.sequences = sequences
        self.background = exchange.request.background
        self.tenant = exchange.request.tenant.name
        arrived_s = exchange.request.arrived_s
        self.arrived_s = controller.usage.now_s() if arrived_s is None else arrived_s
        self._controller = controller
        self._quota = quota
        self._held_tokens = 0
        self._open = True

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.release()

    def pop(self) -> Reservation:
        """Pass what is held on to a new owner (cf. ExitStack.pop_all): this object gives nothing back any
        more.
        """
        passed_on, self._open = copy(self), False
        return passed_on

    def wait(self, time_out: Callable[[FirelaneError], None]) -> None:
        """The request is in the engine's queue from now on. time_out: told when it has been there too
        long.
        """
        self._controller.line[self] = (self._controller.usage.now_s(), time_out)

    def charge(self, prompt_tokens: int, output_tokens: int) -> None:
        """Hold so many tokens of the quota, at most, now that the prompt's length is known, and tell the
        client what is left. Raises RateLimitError.
        """
        try:
            self._held_tokens = self._quota.take_tokens(prompt_tokens, output_tokens)
        finally:
            self.exchange.extra_headers += self._quota.headers()

    def release(self) -> None:
        """The request did not start: the tenant has made one, but used no tokens."""
        self._end(used_tokens=0)

    def close(self, outcome: RequestOutcome) -> None:
        """The request has ended: its usage is written down."""
        if self._end(used_tokens=outcome.prompt_tokens + outcome.generated_tokens):
            self._controller.usage.ended(self.exchange, outcome)

    def _end(self, used_tokens: int) -> bool:
        was_open, self._open = self._open, False
        if was_open:
            self._controller.release(self)
            self._quota.end(self._held_tokens, used_tokens)
        return was_open


class AdmissionController:
    """Counts the sequences of one model between admission and end. Room is what the engine runs at once plus
    `max_queue` waiting, none of them for longer than `max_age_s`. held: sequences of clients, whichever
    process of the server has them; background: those of batches, which take no room from clients. early_held:
    of `held` those that wait for the model itself. draining: nothing is admitted any more.

    When all seats are taken, a named tenant may hold QUEUE_SHARE times what is then still free: one that
    floods the server fills most of the queue, and never the places that others need. (Choudhury and Hahne,
    "Dynamic queue length thresholds for shared-memory packet switches", 1998.)
    """

    def __init__(
        self,
        tenants: Tenants,
        usage: UsageLog,
        max_queue: int,
        max_age_s: float,
        *,
        model: str = "",
        counts: Counts | None = None,
    ) -> None:
        """counts: shared with other processes, by the model's name."""
        self.usage = usage
        self._counts, self._model = counts or LocalCounts(), model
        self.record = self._counts.record(f"model {model}")
        self.draining = False
        self._tenants = tenants
        self._max_queue = max_queue
        self.max_age_s = max_age_s
        self.line: dict[Reservation, tuple[float, Callable[[FirelaneError], None]]] = {}
        """Requests in the engine's queue, by their arrival there."""

    @property
    def held(self) -> int:
        return int(self.record.total(HELD))

    @property
    def own_held(self) -> int:
        """Places of `held` that this process holds."""
        return int(self.record.own[HELD])

    @property
    def background(self) -> int:
        return int(self.record.total(BACKGROUND))

    @property
    def early_held(self) -> int:
        return int(self.record.total(EARLY))

    def reserve(
        self, exchange: Exchange, sequences: int, max_num_seqs: int, *, reject_if_busy: bool = False
    ) -> Reservation:
        """Count the request against its tenant's quota, then take room. Background work, which takes only
        what is idle, counts for no rate limit. Raises EngineDeadError while draining, RateLimitError,
        QueueFullError when there is no room now, RequestError when there never will be.
        """
        if self.draining:
            raise EngineDeadError("the server is shutting down: try another one")
        if reject_if_busy and self.held + sequences > max_num_seqs:
            raise QueueFullError("the engine is busy, and `rejectIfBusy` is true: try again later")
        request = exchange.request
        quota = UNLIMITED if request.background else self._tenants.quota(request.tenant)
        try:
            quota.admit()
        except RequestError:
            exchange.extra_headers += quota.headers()
            raise
        try:
            if request.background:
                self._take_idle(sequences, max_num_seqs)
            else:
                self._take_room(sequences, max_num_seqs, request.tenant.name)
        except RequestError:
            quota.end(0)
            raise
        return Reservation(self, exchange, quota, sequences)

    @contextlib.contextmanager
    def early(self, exchange: Exchange) -> Generator[None]:
        """A place in the queue for a request that waits for the model itself. Raises QueueFullError, and
        EngineDeadError while draining."""
        if self.draining:
            raise EngineDeadError("the server is shutting down: try another one")
        place = Reservation(self, exchange, UNLIMITED, 1)
        self._take_room(1, 0, place.tenant)
        self.record.own[EARLY] += 1
        try:
            yield
        finally:
            self.record.own[EARLY] -= 1
            place.release()

    @property
    def is_busy(self) -> bool:
        """There are requests, other than those that wait for the model itself."""
        return self.held > self.early_held or self.background > 0

    def _take_room(self, sequences: int, max_num_seqs: int, tenant: str) -> None:
        room = self._check_size(sequences, max_num_seqs)
        mine = self._of_tenant(tenant) if tenant and sequences else None
        with self.record.turn():
            held = self.held + sequences
            if held > room:
                raise QueueFullError(
                    f"the queue is full ({self._max_queue} waiting requests): try again later"
                )
            own = sequences if mine is None else int(mine.total(HELD)) + sequences
            if mine is not None and max_num_seqs < held and QUEUE_SHARE * (room - held) < own > sequences:
                raise QueueFullError(
                    f"tenant {tenant} has {own - sequences} sequences here, and what is free is for others: "
                    "try again later"
                )
            self.record.own[HELD] += sequences
            if mine is not None:
                mine.own[HELD] += sequences

    def _of_tenant(self, tenant: str) -> CountRecord:
        return self._counts.record(f"model {self._model} tenant {tenant}")

    def _check_size(self, sequences: int, max_num_seqs: int) -> int:
        room = max_num_seqs + self._max_queue
        if sequences > room:
            raise RequestError(
                f"{sequences} sequences in one request: this server takes at most {room}", param="n"
            )
        return room

    def _take_idle(self, sequences: int, max_num_seqs: int) -> None:
        self._check_size(sequences, max_num_seqs)
        if self.held + self.background >= max_num_seqs:
            raise QueueFullError("no seat is idle: background work has to wait")
        self.record.own[BACKGROUND] += sequences

    def release(self, reservation: Reservation) -> None:
        """The room of a reservation that ends (called by it)."""
        self.line.pop(reservation, None)
        if reservation.background:
            self.record.own[BACKGROUND] -= reservation.sequences
            return
        self.record.own[HELD] -= reservation.sequences
        if reservation.tenant and reservation.sequences:
            self._of_tenant(reservation.tenant).own[HELD] -= reservation.sequences

    def sweep(self, now_s: float) -> None:
        """Tell those that have waited for too long."""
        for reservation, (since_s, time_out) in list(self.line.items()):
            if now_s - since_s <= self.max_age_s:
                return
            del self.line[reservation]
            time_out(
                QueueTimeoutError(f"the request waited {self.max_age_s:g} s in the queue: try again later")
            )


def cache_salt(tenant_salt: bytes, asked: str | None) -> bytes:
    """Requests share cached prefixes only when they are of one tenant and name the same `cache_salt`."""
    if asked is None:
        return tenant_salt
    digest = hashlib.blake2b(tenant_salt, digest_size=16, person=b"firelane.salt")
    digest.update(b"\0" + asked.encode())
    return digest.digest()
