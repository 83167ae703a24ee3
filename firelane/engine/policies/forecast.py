"""Predictions of when an answer is complete, from the times of the engine's own steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from firelane.engine.sequences.sequence import Sequence
from firelane.engine.step.step_time import StepTimeModel
from firelane.errors import DeadlineError
from firelane.wire.frames import Rejected

NEWEST = 0.01
"""Share of the newest value in a mean."""
FORGET_S = 5.0
OUTLIER = 20.0
"""A step counts as at most so many times the mean."""


class LateSequence(NamedTuple):
    """A waiting sequence that cannot keep its deadline. left_s: until then; needs_s: until its answer would
    be complete."""

    sequence: Sequence
    left_s: float
    needs_s: float


def refusal_of(late: LateSequence) -> Rejected:
    """The frame that tells the gateway."""
    left_ms, needs_ms = 1000 * late.left_s, 1000 * late.needs_s
    known = f"is due in {left_ms:.0f} ms and would take about {needs_ms:.0f} ms"
    over = "is due already, and has not begun"
    error = DeadlineError(
        f"the answer cannot be complete within its deadline: it {known if late.left_s > 0 else over}. Give "
        "it more time, ask for fewer tokens, or try again later"
    )
    return Rejected(late.sequence.id, str(error), status=error.status, code=error.reason)


class Pace(NamedTuple):
    """Times of an engine. full_s: seconds of a step of `tokens` tokens, as many as there may be; step_s: of
    its usual step; shortest_s: of the shortest one. drawn: tokens that a step gives a sequence; with drafts
    there may be several."""

    tokens: int
    full_s: float
    step_s: float
    shortest_s: float
    drawn: float = 1.0

    def seconds(self, prompt: float, output: int, behind: float = 0.0) -> float:
        """Until so many output tokens are there. prompt: tokens of its own prompt and of those ahead of it;
        behind: of those that are computed while it draws, in steps that are full. What is waited for a slot
        or for pages is not in it."""
        first_s = max(self.shortest_s, prompt * self.full_s / self.tokens)
        steps = (output - 1) / self.drawn
        full = min(steps, behind / self.tokens)
        return first_s + full * max(self.full_s, self.step_s) + (steps - full) * self.step_s


class Forecast:
    """Knows nothing before the first step: then everything is taken to be possible."""

    def __init__(self, times: StepTimeModel, max_tokens: int, clock: Callable[[], float]) -> None:
        """max_tokens: of a step. clock: in seconds."""
        self._times, self._clock, self._ended_s = times, clock, 0.0
        self._max_tokens = max_tokens
        self._step_s, self._steps = 0.0, 0
        self._computed_share = self._drawn = 1.0

    def step_ended(self, seconds: float) -> None:
        """A step has taken so long. The first ones count alike; a slow one was held up by something else."""
        self._steps, self._ended_s = self._steps + 1, self._clock()
        newest_s = min(seconds, OUTLIER * self._step_s) if self._step_s else seconds
        self._step_s += max(NEWEST, 1 / self._steps) * (newest_s - self._step_s)

    def admitted(self, tokens: int, cached_tokens: int) -> None:
        """A sequence of so many tokens got a slot, and found some of them in the prefix cache."""
        self._computed_share += NEWEST * ((tokens - cached_tokens) / tokens - self._computed_share)

    def drew(self, sequences: int, tokens: int) -> None:
        """A step that may have had drafts gave so many sequences so many tokens."""
        if sequences:
            self._drawn += NEWEST * (tokens / sequences - self._drawn)

    def work(self, sequence: Sequence) -> float:
        """Tokens that are likely to be computed still before its first one is drawn."""
        if sequence.slot >= 0:
            return len(sequence.tokens) - sequence.computed
        if sequence.likely_cached >= 0:
            return len(sequence.tokens) - sequence.likely_cached
        return len(sequence.tokens) * self._computed_share

    def pace(self) -> Pace:
        """The pace of the engine as it is loaded now. One that has computed nothing for FORGET_S is idle."""
        idle = self._idle_pace()
        kept = max(0.0, 1 - (self._clock() - self._ended_s) / FORGET_S)
        return idle._replace(step_s=idle.step_s + kept * max(0.0, self._step_s - idle.step_s))

    def alone_s(self, sequence: Sequence) -> float:
        """The least that the sequence takes: nothing is ahead of it, and steps are short."""
        return self._idle_pace().seconds(self.work(sequence), sequence.urgency.output_tokens)

    def _idle_pace(self) -> Pace:
        shortest_s = self._times.expected_s(1)
        full_s = self._times.expected_s(self._max_tokens)
        return Pace(self._max_tokens, full_s, shortest_s, shortest_s, self._drawn)
