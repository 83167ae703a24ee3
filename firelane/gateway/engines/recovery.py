"""Rules for requests whose engine has died: which of them go on with another one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from firelane.errors import EngineDeadError, FirelaneError, RequestError
from firelane.gateway.engines.in_flight import InFlight

PROGRESS_TOKENS = 4
"""More than an engine can have drawn and not reported: with fewer new ones, a request is where it was."""

NEXT_IN_QUEUE = 16
MOST_LOSSES = 6


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

    def judge(self, lost: list[InFlight], on_trial: InFlight | None, reason: str) -> Verdict:
        """What becomes of the requests of an engine that died. on_trial: the one that was resumed alone."""
        ...


class NoRecovery:
    """Requests fail with their engine."""

    waits = False

    def judge(self, lost: list[InFlight], on_trial: InFlight | None, reason: str) -> Verdict:
        del on_trial
        error = EngineDeadError(f"the engine ended while the request was in flight: {reason}")
        return Verdict(fail=[(flight, error) for flight in lost])


class Resume:
    """Requests go on with another engine. One that was at work at two deaths, without progress between them,
    may be what kills: where it is the only such one, it fails; where there are several, they go on one at a
    time, and the one that is then at work at a third death fails.

    At work are those that the engine has begun, and the next few of its queue: it may have died in their
    first step. The order of a queue is its own affair, so what was lost MOST_LOSSES times is suspect, too.
    """

    waits = True

    def judge(self, lost: list[InFlight], on_trial: InFlight | None, reason: str) -> Verdict:
        waiting = [flight.id for flight in lost if not flight.running]
        behind = set(waiting[NEXT_IN_QUEUE:])
        for flight in lost:
            _count_death(flight, at_work=flight.id not in behind)
        suspects = [flight for flight in lost if flight.deaths >= 2 or flight.losses >= MOST_LOSSES]
        verdict = Verdict(resume=[flight for flight in lost if flight not in suspects])
        guilty = on_trial if on_trial in suspects else suspects[0] if len(suspects) == 1 else None
        if guilty is not None:
            verdict.fail.append((guilty, _refusal(guilty, reason)))
        verdict.alone = [flight for flight in suspects if flight is not guilty]
        return verdict


def _refusal(guilty: InFlight, reason: str) -> RequestError:
    """An error that no client takes for a reason to try again."""
    return RequestError(
        f"{guilty.deaths} engines died while they worked on this request, at the same place: it is not tried "
        f"again (the last one: {reason})",
        code="engine_died_repeatedly",
    )


def _count_death(flight: InFlight, *, at_work: bool) -> None:
    if len(flight.tokens) - flight.kept > PROGRESS_TOKENS:
        flight.deaths = flight.losses = 0
    flight.kept = len(flight.tokens)
    flight.losses += 1
    if at_work:
        flight.deaths += 1
