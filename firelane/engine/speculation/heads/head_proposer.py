"""HeadProposer: drafts of a head that goes on from what the served model has computed of each token."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Several

import numpy as np
from numpy.typing import NDArray

from firelane.contract import Executor, GivenBack, SlotState
from firelane.engine.speculation.heads.head_layers import MOST_WAITING, HeadLayers
from firelane.engine.speculation.heads.head_rows import HeadRows
from firelane.engine.speculation.heads.head_steps import Drawn, HeadSteps
from firelane.engine.speculation.proposer import NO_PROPOSAL, Asked, ComputedRows, Proposal
from firelane.engine.step.step_time import StepTimeModel

F32 = NDArray[np.float32]


class HeadProposer:
    """A Proposer and FeatureReader. A draft is what the head finds most likely, token after token."""

    def __init__(
        self,
        rows: HeadRows,
        steps: Several[HeadSteps],
        state: SlotState,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """steps: of each layer; state: of the target's slots; clock: seconds. Owns neither rows nor steps."""
        self._layers = HeadLayers(rows, steps, state)
        self._rows, self._steps, self._clock = rows, steps[0], clock
        self._times = StepTimeModel()
        """The times of steps that draw one more token of each draft."""

    def note_rows(self, computed: Iterable[ComputedRows]) -> None:
        """Long runs are gone through at once, a few rows wait for the next draft."""
        due: list[int] = []
        for run in computed:
            text = self._layers.text(run)
            text.first.add(run.features[text.first.stop - run.start :])
            if text.first.count > MOST_WAITING:
                due.append(run.slot)
        self._layers.compute(due)

    def propose(self, asked: Several[Asked]) -> list[Proposal]:
        began_s = self._clock()
        known = [one for one in asked if self._is_ready(one)]
        found = dict(zip((one.slot for one in known), self._draft(known), strict=True)) if known else {}
        each_s = (self._clock() - began_s) / max(len(known), 1)
        return [
            found[one.slot]._replace(seconds=each_s) if one.slot in found else NO_PROPOSAL for one in asked
        ]

    def forget(self, tenant: bytes) -> None:
        self._layers.forget(tenant)

    def standby(self) -> GivenBack:
        return self._layers.standby()

    def wake(self) -> None:
        self._layers.wake()

    def _is_ready(self, asked: Asked) -> bool:
        text = self._layers.texts.get(asked.slot)
        return (
            text is not None
            and text.sequence is asked.sequence
            and text.first.count > 0
            and text.first.stop == len(asked.tokens) - 1
        )

    def _draft(self, asked: Several[Asked]) -> list[Proposal]:
        slots = [one.slot for one in asked]
        drawn = self._layers.draw_first(slots)
        drafts = [[token] for token in self._rows.tokens(drawn.numbers).tolist()]
        self._extend(asked, drafts, drawn)
        self._layers.compute_long(slots)
        return [Proposal(draft, chance) for draft, chance in zip(drafts, drawn.chances.tolist(), strict=True)]

    def _longest(self, asked: Several[Asked], chances: F32) -> NDArray[np.int64]:
        """int64 [asked]: tokens of each draft, as many as are likely to pay and have pages for their rows."""
        token_s = self._times.seconds(len(asked)) / len(asked)
        found = np.ones(len(asked), np.int64)
        for i, (one, chance) in enumerate(zip(asked, chances.tolist(), strict=True)):
            room = 2 + self._steps.capacity(one.sequence) - len(one.tokens)
            found[i] = max(1, min(one.worth(chance, token_s), room))
        return found

    def _extend(self, asked: Several[Asked], drafts: list[list[int]], drawn: Drawn) -> None:
        """Add tokens to drafts of one, as many as pay."""
        going, most = np.arange(len(asked)), self._longest(asked, drawn.chances)
        for length in range(1, int(most.max())):
            goes_on = most[going] > length
            told, going = drawn.last_told()[goes_on], going[goes_on]
            began_s = self._clock()
            drawn = self._drawn([asked[i] for i in going], [drafts[i] for i in going], told)
            self._times.note(len(going), self._clock() - began_s)
            for i, token in zip(going.tolist(), self._rows.tokens(drawn.numbers).tolist(), strict=True):
                drafts[i].append(token)

    def _drawn(self, asked: Several[Asked], drafts: Several[list[int]], told: F32) -> Drawn:
        """One more token of each of these drafts, which are of one length."""
        length, depth = len(drafts[0]), self._layers.depth
        if length < depth:
            return self._layers.draw_next([one.slot for one in asked], drafts)
        places = [(one.slot, len(one.tokens) - 1 + length - depth) for one in asked]
        return self._layers.draw_behind(places, np.array([draft[-1] for draft in drafts], np.int32), told)


def head_proposer(heads: Several[Executor], rows: HeadRows, target: Executor) -> HeadProposer:
    """The proposer of a loaded head, whose layers are `heads`. Owns no executor. Raises UsageError where
    their pages do not go together."""
    return HeadProposer(rows, [HeadSteps(head, target) for head in heads], target.state)
