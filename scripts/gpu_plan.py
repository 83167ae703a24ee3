"""The plan of gpu_check: which steps run in this call, in which order, for how long at most."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_steps import Step

SPARE_S = 15.0  # to end a step that overran, and to write what it left
KEPT = "in an earlier call"


@dataclass(frozen=True, kw_only=True)
class Result:
    """outcome: ok, failed, stopped at its limit, skipped for want of a package, left for the next call. why:
    what to know about it. key: what it holds for (sources, device, versions)."""

    name: str
    outcome: str
    seconds: float = 0.0
    why: str = ""
    key: str = ""

    @property
    def is_bad(self) -> bool:
        return self.outcome in ("failed", "stopped")


Run = Callable[[Step, float], Result]
"""A step, and the seconds after which it is stopped."""


def run_all(
    steps: Sequence[Step],
    run: Run,
    *,
    minutes: float,
    earlier: Mapping[str, Result],
    key: str,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Result]:
    """One result for each step, as it becomes known. earlier: what calls before this one found, by step;
    what went well under the same key is taken from there."""
    ends_s = clock() + 60 * minutes - SPARE_S
    broken = ""
    for step in steps:
        known = earlier.get(step.name)
        if broken:
            yield Result(name=step.name, outcome="left", why=f"{broken} failed", key=key)
            continue
        if known and is_settled(step, known, key):
            yield known
            continue
        left_s, needed_s = ends_s - clock(), expected_s(step, known)
        if left_s < needed_s:
            yield Result(name=step.name, outcome="left", why=_left(needed_s, left_s, known), key=key)
            continue
        result = run(step, min(step.limit_s, left_s))
        broken = step.name if step.always and result.is_bad else ""
        yield result


def is_settled(step: Step, known: Result, key: str) -> bool:
    """Whether the step need not run again."""
    return not step.always and known.outcome == "ok" and known.key == key


def expected_s(step: Step, known: Result | None) -> float:
    """Return the seconds that a step took when it went well, or twice those that were too few for it, or else
    the least that make it worth starting."""
    if known and known.outcome == "ok":
        return known.seconds
    if known and known.outcome == "stopped":
        return min(step.limit_s, 2 * known.seconds)
    return step.least_s


def _left(needed_s: float, left_s: float, known: Result | None) -> str:
    before = f"; before: {known.outcome}, {known.why}" if known and known.is_bad else ""
    return f"wants {needed_s:.0f} s, {max(left_s, 0):.0f} s are left: call again{before}"


def describe_plan(steps: Sequence[Step], minutes: float, earlier: Mapping[str, Result]) -> str:
    rows = [
        f"{s.name:<13} {s.least_s:4.0f} - {s.limit_s:4.0f} s  {_known(earlier.get(s.name)):<8} "
        f"python {' '.join(' '.join(s.command).split())}"
        for s in steps
    ]
    return "\n".join(
        [*rows, f"{'all':<13} {60 * minutes:11.0f} s  what does not fit is left for the next call"]
    )


def _known(known: Result | None) -> str:
    return known.outcome if known else "-"
