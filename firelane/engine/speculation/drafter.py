"""Drafts for the decodes of a planned step, each as long as it is likely to pay."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from firelane.contract import NOTHING, GivenBack, SlotState, StepInputs, StepOutputs
from firelane.engine.grammar.draft_masks import NO_DRAFT, AllowedDraft, DraftMasks
from firelane.engine.sequences.sequence import Sequence
from firelane.engine.sequences.table import SequenceTable
from firelane.engine.speculation.computed_rows import computed_rows
from firelane.engine.speculation.draft_budget import DraftBudget
from firelane.engine.speculation.draft_length import DraftLength
from firelane.engine.speculation.forced_text import ForcedText
from firelane.engine.speculation.proposer import NO_PROPOSAL, Asked, FeatureReader, Proposal, Proposer
from firelane.engine.step.drafts import Drafts
from firelane.engine.step.plan import StepPlan
from firelane.engine.step.step_time import StepTimeModel

LEAST_ROW_PRICE = 0.02
"""Tokens that could be drawn in the time of one more row, at least."""
ANEW = 1.37
"""Rows of one more drafted token, with those that are computed once more, of a model with recurrent state."""
RATE_MEMORY = 100.0
"""Drafted tokens of all sequences that count as much as all before them."""
NONE = np.zeros(0, np.int64)
log = logging.getLogger(__name__)


class Drafter:
    """Chooses drafts, and learns from what became of them. `drafts`, `drafted_tokens` and `accepted_tokens`
    only grow. times: of the engine's steps, noted by its loop."""

    def __init__(
        self,
        table: SequenceTable,
        state: SlotState,
        proposer: Proposer | None,
        masks: DraftMasks,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """proposer: None where nothing is drafted. clock: seconds that this thread has worked."""
        self._table, self._state, self._proposer, self._masks = table, state, proposer, masks
        self._forced = ForcedText(table, masks)
        self._given = proposer
        self._reader = proposer if isinstance(proposer, FeatureReader) else None
        self._lengths = [DraftLength() for _ in table.sequences]
        self._owners = np.full(len(table.sequences), -1, np.int64)
        """By slot, the request whose length is known."""
        self._wants = np.zeros(len(table.sequences), np.bool_)
        """By slot, whether that request may have drafts."""
        self._clock, self._proposing_s = clock, 0.0
        self._rests_until = np.zeros(len(table.sequences), np.int64)
        self._turn, self._rate = 0, 1.0
        self._budget = DraftBudget()
        self.times = StepTimeModel()
        self.drafts = self.drafted_tokens = self.accepted_tokens = 0

    @property
    def is_on(self) -> bool:
        return self._proposer is not None

    def note_step(self, plan: StepPlan, inputs: StepInputs, outputs: StepOutputs) -> None:
        """A step has ended, and is not yet committed."""
        if self._reader is None:
            return
        try:
            self._reader.note_rows(computed_rows(self._table, plan, inputs, outputs))
        except Exception:
            self._give_up()

    def forget(self, tenant: bytes) -> None:
        """No text of this tenant is kept."""
        if self._proposer is not None:
            self._proposer.forget(tenant)

    def standby(self) -> GivenBack:
        """Give back what the proposer has of memory, as Executor.standby does."""
        return NOTHING if self._given is None else self._given.standby()

    def wake(self) -> None:
        """Have it again, as Executor.wake does."""
        if self._given is not None:
            self._given.wake()

    def draft(self, plan: StepPlan, rows: int, block_size: int, *, is_alone: bool) -> StepPlan:
        """The plan with drafts of at most `rows` tokens together, or as it is. No step in flight has a chunk
        of its decodes, and all of their tokens are in the slots' state. is_alone: no step is in flight; else
        sequences with a grammar have no drafts."""
        decodes = len(plan.decode_slots)
        self._turn += 1
        if self._proposer is None or not decodes or rows < 1:
            return plan
        self._meet(plan.decode_slots)
        if not self._wants[plan.decode_slots].any():  # what nobody may have, nobody pays for
            return plan
        self._budget.earn()
        if self._budget.is_spent or not self.times.has_seen(decodes):
            return plan  # what a draft costs is told beside a step without one
        began_s, self._proposing_s = self._clock(), 0.0
        drafted = self._drafted(plan, rows, block_size, is_alone=is_alone)
        if drafted is not plan:
            host_s = self._clock() - began_s - self._proposing_s
            self._budget.spend(host_s, self.times.seconds(decodes))
        return drafted

    def _drafted(self, plan: StepPlan, rows: int, block_size: int, *, is_alone: bool) -> StepPlan:
        """The plan with drafts where some are due, and likely to pay."""
        due, masked = self._due(plan.decode_slots), self._masked(plan.decode_slots, is_alone=is_alone)
        price = self._row_price(len(plan.decode_slots)) if due.size or masked.size else 1.0
        if price >= 1.0:
            return plan
        room = np.minimum(self._room(plan, block_size), rows)
        forced = self._forced.runs(plan.step, plan.decode_slots[masked], room[masked], price)
        asked = self._asked(plan, due, room, price, is_alone)
        asked = [one for one in asked if one.slot not in forced]
        if not (asked or forced):
            return plan
        self._masks.begin()
        runs: dict[int, AllowedDraft] = {}
        for slot, run in [*forced.items(), *self._chosen(asked, price, len(plan.decode_slots))]:
            runs[slot] = self._allowed(self._table.at(slot), run[:rows])
            rows -= len(runs[slot].tokens)
        return self._with_drafts(plan, [runs.get(slot, NO_DRAFT) for slot in plan.decode_slots.tolist()])

    def _with_drafts(self, plan: StepPlan, runs: list[AllowedDraft]) -> StepPlan:
        """The plan with these drafts of its decodes, of a model with recurrent state as many as there are
        spare states."""
        spares = None
        if self._table.spares.count:
            wanted = np.array([bool(run.tokens) for run in runs])
            spares = self._table.spares.choose(plan.decode_slots, wanted)
            runs = [NO_DRAFT if spare < 0 else run for run, spare in zip(runs, spares.tolist(), strict=True)]
        if not any(run.tokens for run in runs):
            return plan
        drafts = Drafts.of([run.tokens for run in runs], [run.rows for run in runs])
        return replace(plan, drafts=drafts._replace(spares=spares))

    def note(self, plan: StepPlan, won: NDArray[np.int32]) -> None:
        """The drafts of `plan` were verified. won: tokens that each decode has got, int32 [decodes]."""
        drafts = plan.drafts
        assert drafts is not None
        right = won - 1
        self.drafts += int(np.count_nonzero(drafts.counts))
        self.drafted_tokens += len(drafts.tokens)
        accepted_tokens, decodes = int(right.sum()), len(won)
        self.accepted_tokens += accepted_tokens
        anew = int(self._table.spares.num_behind(plan.decode_slots))
        self._note_time(plan, drafts, accepted_tokens / decodes, anew)
        for slot, drafted, accepted in zip(
            plan.decode_slots.tolist(), drafts.counts.tolist(), right.tolist(), strict=True
        ):
            sequence = self._table.sequences[slot]
            if drafted and sequence is not None:
                self._note(plan.step, slot, drafted, accepted)
                sequence.rejected_drafts += drafted - accepted

    def _note_time(self, plan: StepPlan, drafts: Drafts, won: float, anew: int) -> None:
        """won: steps that the accepted tokens would have taken. anew: tokens that the next step computes once
        more."""
        decodes = len(plan.decode_slots)
        known = 0 if plan.states is None else int(plan.states.behind.sum())
        together, plain = self.times.seconds(drafts.num_rows + known), self.times.seconds(decodes)
        self._budget.note(won - anew * self.times.share_of_one_more(decodes), together, plain)

    def _row_price(self, decodes: int) -> float:
        """Tokens that a step of so many decodes could draw in the time of one more row. With recurrent state
        a row may be computed again: the last of a draft of n tokens that are right with a chance of c each
        makes that n · c^n · (1 - c) rows more, up to about a third."""
        price = decodes * self.times.share_of_one_more(decodes)
        return max(price * ANEW if self._table.spares.count else price, LEAST_ROW_PRICE)

    def _allowed(self, sequence: Sequence, run: list[int]) -> AllowedDraft:
        return AllowedDraft(run, []) if sequence.constraint is None else self._masks.allowed(sequence, run)

    def _propose(self, asked: list[Asked]) -> list[Proposal]:
        """The proposals. A proposer that fails is not asked again: drafts are never worth a request."""
        assert self._proposer is not None
        try:
            return self._proposer.propose(asked) if asked else []
        except Exception:
            self._give_up()
            return [NO_PROPOSAL] * len(asked)

    def _give_up(self) -> None:
        log.exception("speculation_off proposer=%s", type(self._proposer).__name__)
        self._proposer = self._reader = None

    def _chosen(self, asked: list[Asked], price: float, decodes: int) -> list[tuple[int, list[int]]]:
        """By slot, what is proposed, as far as it is likely to pay. decodes: of the step."""
        lengths, began_s = self._lengths, self._clock()
        proposals = self._propose(asked)
        seconds = sum(one.seconds for one in proposals)
        self._budget.spend(seconds, self.times.seconds(decodes))
        self._proposing_s = self._clock() - began_s if seconds else 0.0
        return [
            (one.slot, found.tokens[: lengths[one.slot].choose(found.confidence, price)])
            for one, found in zip(asked, proposals, strict=True)
        ]

    def _masked(self, slots: NDArray[np.int64], *, is_alone: bool) -> NDArray[np.int64]:
        """Indices of decodes with a grammar, whose forced text may be drafted."""
        return np.flatnonzero(self._state.sampling["masked"][slots]) if is_alone else NONE

    def _asked(
        self, plan: StepPlan, due: NDArray[np.int64], room: NDArray[np.int32], price: float, is_alone: bool
    ) -> list[Asked]:
        """Decodes of the plan that may have a draft. due: their indices; room: of all, tokens that fit."""
        asked: list[Asked] = []
        plain_s = self.times.seconds(len(plan.decode_slots))
        tokens_per_s = len(plan.decode_slots) / plain_s if plain_s else 0.0
        slots, positions = plan.decode_slots[due].tolist(), plan.decode_positions[due].tolist()
        for slot, position, fits in zip(slots, positions, room[due].tolist(), strict=True):
            sequence = self._table.at(slot)
            most = min(fits, sequence.most_drafted)
            if most < 1 or (sequence.constraint is not None and not is_alone):
                continue
            length = self._lengths[slot]
            most = min(most, length.choose(1.0, price))
            if most:
                tokens = self._state.tokens[slot, : position + 1]
                asked.append(Asked(slot, sequence, tokens, most, length, price, tokens_per_s))
        return asked

    def _room(self, plan: StepPlan, block_size: int) -> NDArray[np.int32]:
        """int32 [decodes]: drafted tokens that fit into the pages of each decode, and before its end."""
        table, slots = self._table, plan.decode_slots
        grows = np.isin(slots, plan.growth) if plan.growth.size else 0
        in_pages = table.capacity[slots] + block_size * grows - plan.decode_positions - 1
        return np.minimum(in_pages, table.end[slots] - plan.decode_positions - 2)

    def _meet(self, slots: NDArray[np.int64]) -> None:
        """Slots may have new requests."""
        for slot in slots[self._owners[slots] != self._table.ids[slots]].tolist():
            self._owners[slot] = self._table.ids[slot]
            self._wants[slot] = self._table.at(slot).most_drafted > 0
            self._lengths[slot] = DraftLength(self._rate)
            self._rests_until[slot] = self._turn + self._lengths[slot].pause

    def _due(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Indices of decodes whose drafts do not rest."""
        return np.flatnonzero(self._rests_until[slots] <= self._turn)

    def _note(self, step: int, slot: int, drafted: int, accepted: int) -> None:
        if self._forced.has(step, slot):
            self._forced.note(drafted, accepted)
            self._table.lookahead[slot] = max(self._table.lookahead[slot], drafted)
            return
        length, failed = self._lengths[slot], accepted < drafted
        length.note(drafted, accepted)
        self._rests_until[slot] = self._turn + 1 + length.pause
        self._table.lookahead[slot] = length.longest if not length.pause else 0
        self._rate = (RATE_MEMORY * self._rate + accepted) / (RATE_MEMORY + accepted + failed)
