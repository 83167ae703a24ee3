"""Rules for requests whose engine has died: which of them go on with another one."""

from __future__ import annotations

from dataclasses import dataclass, field

from firelane.errors import EngineDeadError, FirelaneError, RequestError
from firelane.gateway.engines.in_flight import InFlight

PROGRESS_TOKENS = 4
"""More than an engine can have drawn and not reported: with fewer new ones, a request is where it was."""

NEXT_IN_QUEUE = 16
ENOUGH_PROOFS = 2
SOLO_DEATHS = 3
"""Engines that died while they had the accused alone, where another process may have killed them. An engine
that crashed, or whose step hung, ended by what it computed: one is enough."""
MOST_DEATHS = 3
"""One more: an engine that had not begun a request may have been killed together with the one before."""
MOST_LOSSES = 6
MOST_UNSEEN = 24
"""Limit where engines were lost with their hosts: a request may be the cause of that, too."""


@dataclass(slots=True)
class Verdict:
    """resume: at once. one_by_one: each while no other of them is with an engine: one of them may have killed
    the engine. alone: with an engine that has nothing else meanwhile. fail: by their error."""

    resume: list[InFlight] = field(default_factory=list[InFlight])
    one_by_one: list[InFlight] = field(default_factory=list[InFlight])
    alone: list[InFlight] = field(default_factory=list[InFlight])
    fail: list[tuple[InFlight, FirelaneError]] = field(default_factory=list[tuple[InFlight, FirelaneError]])


@dataclass(frozen=True, slots=True)
class Death:
    """The end of an engine, as the gateway knows of it.

    reason: in words for people.
    on_trial: the request that was resumed on trial; None: there is none.
    is_alone: that engine had nothing but this request, as far as is known.
    is_crash: the engine ended by what it computed: no other process killed it.
    is_seen: its end was seen; else it may live behind a network that failed.
    """

    reason: str
    on_trial: InFlight | None = None
    is_alone: bool = False
    is_crash: bool = False
    is_seen: bool = True


class NoRecovery:
    """Requests fail with their engine."""

    waits = False
    """No request is taken and kept while an engine is started again."""

    def judge(self, lost: list[InFlight], death: Death) -> Verdict:
        error = EngineDeadError(f"the engine ended while the request was in flight: {death.reason}")
        return Verdict(fail=[(flight, error) for flight in lost])


class Resume:
    """Requests go on with another engine, unless a trial proves that they kill. What makes a request suspect
    are deaths at one place, with no more than PROGRESS_TOKENS between them:

    - proofs: of engines that had said that they have begun it, or that died while it was on trial;
    - deaths: of engines that may have been in its first step: the next few of the queue, too;
    - losses: of all engines that had it: the order of a queue is its own affair.

    Suspects go on one at a time, each on trial until it has gone past the place. The one that is on trial
    when an engine dies is accused: it goes on alone, at an engine that has nothing else. It fails when
    engines die that have it alone: one that crashed, or SOLO_DEATHS that were perhaps killed by another
    process. Nobody else ever fails. An engine that is out of sight is a loss alone, and its requests fail
    after MOST_UNSEEN of them.
    """

    waits = True

    def judge(self, lost: list[InFlight], death: Death) -> Verdict:
        for flight in lost:
            _forget_after_progress(flight)
        _count(lost, death)
        verdict = Verdict()
        for flight in lost:
            if not _is_suspect(flight):
                verdict.resume.append(flight)
            elif _is_guilty(flight, death):
                verdict.fail.append((flight, _refusal(flight, death.reason)))
            elif flight is death.on_trial and death.is_seen:
                verdict.alone.append(flight)
            else:
                verdict.one_by_one.append(flight)
        return verdict


Recovery = NoRecovery | Resume


def _forget_after_progress(flight: InFlight) -> None:
    if len(flight.tokens) - flight.kept > PROGRESS_TOKENS:
        flight.proofs = flight.deaths = flight.losses = flight.solo_deaths = 0
    flight.kept = len(flight.tokens)


def _count(lost: list[InFlight], death: Death) -> None:
    next_in_queue = NEXT_IN_QUEUE
    for flight in lost:
        flight.losses += 1
        if not death.is_seen:
            continue
        is_tried = flight is death.on_trial
        proven = flight.running or is_tried
        flight.proofs += proven
        flight.deaths += proven or next_in_queue > 0
        flight.solo_deaths += is_tried and death.is_alone
        next_in_queue -= not flight.running


def _is_suspect(flight: InFlight) -> bool:
    return flight.proofs >= ENOUGH_PROOFS or flight.deaths >= MOST_DEATHS or flight.losses >= MOST_LOSSES


def _is_guilty(suspect: InFlight, death: Death) -> bool:
    if not death.is_seen:
        return suspect.losses >= MOST_UNSEEN
    needed = 1 if death.is_crash and death.is_alone else SOLO_DEATHS
    return suspect is death.on_trial and suspect.solo_deaths >= needed


def _refusal(guilty: InFlight, reason: str) -> RequestError:
    """An error that no client takes for a reason to try again."""
    return RequestError(
        f"{guilty.losses} engines died while they had this request, at the same place: it is not tried "
        f"again (the last one: {reason})",
        code="engine_died_repeatedly",
    )
