"""Hop 2: who asks, for which model, and whether there is room."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

from firelane.errors import (
    FirelaneError,
    ModelNotServedError,
    QueueFullError,
    QueueTimeoutError,
    RequestError,
)

QUEUE_SHARE = 8


@dataclass(slots=True)
class Admitted:
    """Room for `sequences`, held until `release`."""

    sequences: int
    admission: Admission | None
    background: bool = False
    tenant: str = ""

    def release(self) -> None:
        """Give the room back. May be called again."""
        admission, self.admission = self.admission, None
        if admission is not None:
            admission.give_back(self)


class Waiting(Protocol):
    """A request with the engine, which may not have begun with it."""

    @property
    def began(self) -> bool:
        """Its first step has been planned."""
        ...

    def fail(self, error: FirelaneError) -> None: ...


class Admission:
    """Counts sequences between admission and end. Room is what the engine runs at once plus `max_queue`
    waiting, none of them for longer than `max_age_s`. held: sequences of clients; background: those of
    batches, which take no room from clients.

    When all seats are taken, a named tenant may hold QUEUE_SHARE times what is then still free: one that
    floods the server fills most of the queue, and never the places that others need. (Choudhury and Hahne,
    "Dynamic queue length thresholds for shared-memory packet switches", 1998.)
    """

    def __init__(self, served_names: tuple[str, ...], max_queue: int, max_age_s: float) -> None:
        self._served_names = frozenset(served_names)
        self.first_name = served_names[0]
        self._max_queue = max_queue
        self._max_age_s = max_age_s
        self._line: dict[Waiting, float] = {}  # by arrival
        self._held_by: dict[str, int] = {}
        self.held = self.background = 0

    def check_model(self, name: str | None) -> None:
        """Raises ModelNotServedError. A request that names no model gets the one that is served."""
        if name is not None and name not in self._served_names:
            raise ModelNotServedError(
                f"The model `{name[:200]}` does not exist: see /v1/models",
                param="model",
                code="model_not_found",
            )

    def admit(self, sequences: int, max_num_seqs: int, tenant: str = "") -> Admitted:
        """Raises QueueFullError when there is no room now, RequestError when there never will be."""
        room = max_num_seqs + self._max_queue
        if sequences > room:
            raise RequestError(
                f"{sequences} sequences in one request: this server takes at most {room}", param="n"
            )
        held, own = self.held + sequences, self._held_by.get(tenant, 0) + sequences
        if held > room:
            raise QueueFullError(f"the queue is full ({self._max_queue} waiting requests): try again later")
        if tenant and max_num_seqs < held and QUEUE_SHARE * (room - held) < own and own > sequences:
            raise QueueFullError(
                f"tenant {tenant} has {own - sequences} sequences here, and what is free is for others: "
                "try again later"
            )
        self.held = held
        if tenant:
            self._held_by[tenant] = own
        return Admitted(sequences, self, tenant=tenant)

    def admit_background(self, sequences: int, max_num_seqs: int) -> Admitted:
        """Raises QueueFullError while each seat of the engine is taken, RequestError as `admit` does."""
        if sequences > max_num_seqs + self._max_queue:
            self.admit(sequences, max_num_seqs)
        if self.held + self.background >= max_num_seqs:
            raise QueueFullError("no seat is idle: background work has to wait")
        self.background += sequences
        return Admitted(sequences, self, background=True)

    def give_back(self, admitted: Admitted) -> None:
        if admitted.background:
            self.background -= admitted.sequences
            return
        self.held -= admitted.sequences
        if admitted.tenant:
            own = self._held_by.pop(admitted.tenant) - admitted.sequences
            if own:
                self._held_by[admitted.tenant] = own

    def check_free(self, sequences: int, max_num_seqs: int) -> None:
        """Raises QueueFullError where they would have to wait for a place in the engine."""
        if self.held + sequences > max_num_seqs:
            raise QueueFullError("the engine is busy, and `rejectIfBusy` is true: try again later")

    def joined(self, request: Waiting, now_s: float) -> None:
        """The request is in the engine's queue since `now_s`."""
        self._line[request] = now_s

    def left(self, request: Waiting) -> None:
        """It has ended. Those that did not join are ignored."""
        self._line.pop(request, None)

    def sweep(self, now_s: float) -> None:
        """Fail what has waited for too long."""
        for request, since_s in list(self._line.items()):
            if now_s - since_s <= self._max_age_s:
                return
            del self._line[request]
            if not request.began:
                request.fail(
                    QueueTimeoutError(
                        f"the request waited {self._max_age_s:g} s in the queue: try again later"
                    )
                )


def cache_salt(tenant_salt: bytes, asked: str | None) -> bytes:
    """Requests share cached prefixes only when they are of one tenant and name the same `cache_salt`."""
    if asked is None:
        return tenant_salt
    digest = hashlib.blake2b(tenant_salt, digest_size=16, person=b"firelane.salt")
    digest.update(b"\0" + asked.encode())
    return digest.digest()
