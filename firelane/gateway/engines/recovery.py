"""Rules for requests whose engine has died: which of them go on with another one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from firelane.errors import EngineDeadError, FirelaneError, RequestError
from firelane.gateway.engines.in_flight import InFlight

PROGRESS_TOKENS = 4
"""More than an engine can have drawn and not reported: with fewer new ones, a request is where it was."""

NEXT_IN_QUEUE = 16
ENOUGH_PROOFS = 2
MOST_DEATHS = 3
"""One more: an engine that had not begun a request may have been killed together with the one before."""
MOST_LOSSES = 6
MOST_UNSEEN = 24
"""Limit where engines were lost with their hosts: a request may be the cause of that, too."""


@dataclass(slots=True)
class Verdict:
    """resume: at once. alone: one after the other, each while no other of them is with an engine: one of them
    may have killed the engine. fail: by their error."""

    resume: list[InFlight] = field(default_factory=list[InFlight])
    alone: list[InFlight] = field(default_factory=list[InFlight])
    fail: list[tuple[InFlight, FirelaneError]] = field(default_factory=list[tuple[InFlight, FirelaneError]])


class Recovery(Protocol):
    @property
    def waits(self) -> bool:
        """Requests are taken and kept while an engine is started again."""
        ...

    def judge(
        self, lost: list[InFlight], on_trial: InFlight | None, reason: str, *, is_seen: bool = True
    ) -> Verdict:
        """The verdict on the requests of an engine that died. on_trial: the one that was resumed alone.
        is_seen: its end was seen; else it may live behind a network that failed."""
        ...


class NoRecovery:
    """Requests fail with their engine."""

    waits = False

    def judge(
        self, lost: list[InFlight], on_trial: InFlight | None, reason: str, *, is_seen: bool = True
    ) -> Verdict:
        del on_trial, is_seen
        error = EngineDeadError(f"the engine ended while the request was in flight: {reason}")
        return Verdict(fail=[(flight, error) for flight in lost])


class Resume:
    """Requests go on with another engine, unless it is proven that they kill. What counts against a request
    are deaths at one place, with no more than PROGRESS_TOKENS between them:

    - proofs: of engines that had said that they have begun it, or that died while it was on trial;
    - deaths: of engines that may have been in its first step: the next few of the queue, too;
    - losses: of all engines that had it: the order of a queue is its own affair.

    Enough of any of them make a suspect. Suspects go on one at a time, each on trial; the one that is on
    trial at a death fails. A single suspect with enough proofs fails at once. An engine that is out of sight
    is a loss alone, and its requests fail after MOST_UNSEEN of them.
    """

    waits = True

    def judge(
        self, lost: list[InFlight], on_trial: InFlight | None, reason: str, *, is_seen: bool = True
    ) -> Verdict:
        for flight in lost:
            _forget_after_progress(flight)
        _count(lost, on_trial, is_seen)
        verdict = Verdict()
        for flight in lost:
            (verdict.alone if _is_suspect(flight) else verdict.resume).append(flight)
        guilty = _guilty(verdict.alone, on_trial) if is_seen else _lost_too_often(verdict.alone)
        if guilty is not None:
            verdict.alone.remove(guilty)
            verdict.fail.append((guilty, _refusal(guilty, reason)))
        return verdict


def _forget_after_progress(flight: InFlight) -> None:
    if len(flight.tokens) - flight.kept > PROGRESS_TOKENS:
        flight.proofs = flight.deaths = flight.losses = 0
    flight.kept = len(flight.tokens)


def _count(lost: list[InFlight], on_trial: InFlight | None, is_seen: bool) -> None:
    next_in_queue = NEXT_IN_QUEUE
    for flight in lost:
        flight.losses += 1
        if not is_seen:
            continue
        proven = flight.running or flight is on_trial
        flight.proofs += proven
        flight.deaths += proven or next_in_queue > 0
        next_in_queue -= not flight.running


def _is_suspect(flight: InFlight) -> bool:
    return flight.proofs >= ENOUGH_PROOFS or flight.deaths >= MOST_DEATHS or flight.losses >= MOST_LOSSES


def _guilty(suspects: list[InFlight], on_trial: InFlight | None) -> InFlight | None:
    if on_trial in suspects:
        return on_trial
    return suspects[0] if len(suspects) == 1 and suspects[0].proofs >= ENOUGH_PROOFS else None


def _lost_too_often(suspects: list[InFlight]) -> InFlight | None:
    return next((flight for flight in suspects if flight.losses >= MOST_UNSEEN), None)


def _refusal(guilty: InFlight, reason: str) -> RequestError:
    """An error that no client takes for a reason to try again."""
    return RequestError(
        f"{guilty.losses} engines died while they had this request, at the same place: it is not tried "
        f"again (the last one: {reason})",
        code="engine_died_repeatedly",
    )
