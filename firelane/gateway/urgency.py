"""Priority and deadline of a request, read from its body and a header."""

from __future__ import annotations

import math
import time
from typing import Protocol

from firelane.api.reading.urgency import checked_deadline, header_deadline
from firelane.api.sampling import AnswerFields
from firelane.errors import DeadlineError
from firelane.gateway.http.exchange import Request

DEADLINE = b"x-request-deadline-ms"
"""Header with the same meaning as `deadline_ms`. Where both are given the sooner one counts."""


class Refusals(Protocol):
    """Counts requests with a deadline by what became of them."""

    def deadline(self, outcome: str) -> None: ...


def note_urgency(request: Request, fields: AnswerFields, now_s: float) -> None:
    """Note priority and deadline of a request whose body is known. now_s: when its body began to be read, by
    time.monotonic(). Raises RequestError."""
    request.priority = fields.priority or 0
    allowed: list[int] = []
    if fields.deadline_ms is not None:
        allowed.append(checked_deadline(fields.deadline_ms, "deadline_ms"))
    header = request.headers.get(DEADLINE)
    if header is not None:
        allowed.append(header_deadline(header, DEADLINE.decode()))
    if allowed:
        arrived_s = now_s if request.arrived_s is None else request.arrived_s
        request.due_s = arrived_s + min(allowed) / 1000


def left_ms(due_s: float) -> int:
    """Milliseconds from now to a deadline, 1 at least; 0 where there is none."""
    return max(1, round(1000 * (due_s - time.monotonic()))) if due_s < math.inf else 0


def check_in_time(request: Request, refusals: Refusals) -> None:
    """Raises DeadlineError where the request's deadline is over before it is with an engine."""
    if time.monotonic() > request.due_s:
        refusals.deadline("refused")
        raise DeadlineError.before_start()
