"""Drafts that a smaller model of the same vocabulary draws."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Several

from firelane.contract import GivenBack
from firelane.engine.speculation.draft_steps import DraftRun, DraftSteps, FollowedSlot
from firelane.engine.speculation.proposer import NO_PROPOSAL, Asked, Proposal
from firelane.engine.step.step_time import StepTimeModel

CONFIDENCE = 0.9
"""The chance that the first token is accepted, before any was tried."""


class _Drawn:
    """A sequence and its draft. most: its longest length."""

    __slots__ = ("asked", "found", "most", "tokens")

    def __init__(self, asked: Asked, found: FollowedSlot, most: int) -> None:
        self.asked, self.found, self.most = asked, found, most
        self.tokens: list[int] = []

    @property
    def goes_on(self) -> bool:
        """It has begun, and is not as long as it may be."""
        return 0 < len(self.tokens) < self.most

    @property
    def next_run(self) -> DraftRun:
        return DraftRun(self.asked.slot, len(self.asked.tokens) + len(self.tokens) - 1, 1, draws=True)

    def proposal(self, token_s: float) -> Proposal:
        return Proposal(self.tokens, CONFIDENCE, len(self.tokens) * token_s) if self.tokens else NO_PROPOSAL


class DraftModel:
    """A Proposer that draws with each sequence's own seed and sampling, as the served model will. Of a long
    prompt it computes as much at a time as one step takes, and drafts nothing until it has all of it."""

    def __init__(self, steps: DraftSteps, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes over `steps`, but not its executor. clock: seconds."""
        self._steps, self._clock = steps, clock
        self._times = StepTimeModel()
        """The times of steps with one token of each sequence."""

    def propose(self, asked: Several[Asked]) -> list[Proposal]:
        drawn = [self._begun(one, len(asked)) for one in asked]
        begun = [one for one in drawn if one is not None]
        self._catch_up(begun)
        while going := [one for one in begun if one.goes_on]:
            began_s = self._clock()
            self._draw(going, [one.next_run for one in going])
            self._times.note(len(going), self._clock() - began_s)
        token_s = self._token_s(len(asked))
        return [NO_PROPOSAL if one is None else one.proposal(token_s) for one in drawn]

    def forget(self, tenant: bytes) -> None:
        self._steps.forget(tenant)

    def standby(self) -> GivenBack:
        """Give back the model's memory, as Executor.standby does."""
        self._steps.forget_all()
        return self._steps.executor.standby()

    def wake(self) -> None:
        """Have it again, as Executor.wake does."""
        self._steps.executor.wake()

    def _begun(self, asked: Asked, sequences: int) -> _Drawn | None:
        """None where no draft would pay."""
        most = asked.worth(CONFIDENCE, self._token_s(sequences))
        if most < 1:
            return None
        found = self._steps.follow(asked)
        most = min(most, found.capacity - found.known + 1)
        self._steps.mask(asked.slot, is_masked=asked.sequence.constraint is not None)
        return _Drawn(asked, found, most)

    def _token_s(self, sequences: int) -> float:
        """Seconds that one more token of one of so many drafts takes; 0 where not known."""
        return self._times.seconds(sequences) / sequences

    def _catch_up(self, drawn: Several[_Drawn]) -> None:
        """Compute the tokens that are new, and draw the first one of each draft that then can begin."""
        left = self._steps.limits.max_num_batched_tokens
        runs: list[DraftRun] = []
        ready: list[_Drawn] = []
        for one in drawn:
            computed, known = one.found.computed, one.found.known
            length = min(min(known, one.found.capacity) - computed, left)
            if length > 0:
                left -= length
                is_whole = computed + length == known
                runs.append(DraftRun(one.asked.slot, computed, length, draws=is_whole))
                ready += [one] if is_whole else []
        if runs:
            self._draw(ready, runs)
        for one in ready:
            self._steps.mask(one.asked.slot, is_masked=False)

    def _draw(self, drawn: Several[_Drawn], runs: Several[DraftRun]) -> None:
        """A step. drawn: those that draw, in the order of their runs."""
        outputs = self._steps.step(runs)
        for one, token in zip(drawn, outputs.tokens[: len(drawn)].tolist(), strict=True):
            if token < self._steps.vocab_size:
                one.tokens.append(token)
            else:
                one.most = 0
