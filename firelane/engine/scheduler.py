"""Continuous batching under a token budget: chooses what the next step computes.

Decodes come first, then prefills that have begun, then waiting sequences in the order of the policy. A
sequence is admitted only with pages for all of its tokens, so that, as a rule, only decodes run out of pages;
then the policy says which running sequence is preempted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firelane.contract import StepLimits
from firelane.engine.policies.policy import SchedulingPolicy, StepQuota
from firelane.engine.sequences.sequence import Sequence, arrival
from firelane.engine.sequences.table import SequenceTable
from firelane.engine.step.draft import PlanDraft
from firelane.engine.step.plan import StepPlan
from firelane.kv import KvCache


class Scheduler:
    """Plans steps from the expected state: what is committed, and what the steps in flight add to it. Changes
    nothing."""

    def __init__(
        self, table: SequenceTable, kv: KvCache, limits: StepLimits, policy: SchedulingPolicy, stages: int = 1
    ) -> None:
        """stages: that steps are computed in, each with sequences of its own at a time."""
        # Every sequence in a slot can then decode, or prefill one token, in every step: none can be starved.
        assert limits.max_num_batched_tokens >= limits.max_num_seqs
        assert limits.max_output_rows >= limits.max_num_seqs
        self._table = table
        self._kv = kv
        self._limits = limits
        self._policy = policy
        self._stages = stages

    def schedule(self, step: int, drawn: int) -> StepPlan:
        """The next step; empty where nothing can run before a step in flight has been committed. drawn: the
        last step whose tokens are there when this one begins."""
        draft = PlanDraft(self._table, self._kv, self._limits, drawn)
        quota = self._policy.open_step(draft)
        stalled = self._secure_prefills(draft)
        slots, lengths = self._decodes(draft, quota, stalled)
        draft.tokens -= len(slots) + self._table.spares.num_behind(slots)
        draft.rows -= len(slots) + len(draft.prefilling())
        quota.spend_decodes(slots)
        self._continue_prefills(draft, quota)
        if not draft.has_preempted and not stalled:
            self._admit(draft, quota)
        return draft.plan(step, slots, lengths - 1)

    def _decodes(
        self, draft: PlanDraft, quota: StepQuota, stalled: set[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Slots that decode in this step, each with pages for its token, and their lengths before it."""
        table = self._table
        slots = self._group(draft, quota.choose_decodes(draft.can_decode().nonzero()[0]))
        lengths = table.expected_length[slots]
        capacity = table.capacity[slots]
        needy = slots[lengths > capacity]
        if needy.size and not draft.grow_all(needy):
            for sequence in sorted(map(table.at, needy.tolist()), key=arrival):
                if sequence.id in draft.preempted or not self._make_room(draft, sequence):
                    stalled.add(sequence.slot)
        self._look_ahead(draft, slots, lengths, capacity)
        idle = stalled.union(sequence.slot for sequence in draft.preempted.values())
        keep = ~np.isin(slots, list(idle)) if idle else slice(None)
        return slots[keep], lengths[keep]

    def _look_ahead(
        self,
        draft: PlanDraft,
        slots: NDArray[np.int64],
        lengths: NDArray[np.int32],
        capacity: NDArray[np.int32],
    ) -> None:
        """Pages that drafts may need, where no sequence has to give up any for them."""
        table = self._table
        lookahead = table.lookahead[slots]
        if not np.count_nonzero(lookahead) or draft.has_preempted:
            return
        wanted = np.minimum(lengths + lookahead, table.end[slots] - 1)
        more = slots[(lengths <= capacity) & (wanted > capacity)]
        if more.size:
            draft.grow_all(more)

    def _group(self, draft: PlanDraft, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slots that have waited longest, as many as leave each stage as many."""
        if self._stages == 1:
            return slots
        most = -(-draft.num_decoding() // self._stages)
        if len(slots) <= most:
            return slots
        return np.sort(slots[np.argsort(self._table.last_step[slots], kind="stable")[:most]])

    def _make_room(self, draft: PlanDraft, sequence: Sequence) -> bool:
        """Pages for the next block of this sequence, if need be those of another; False where it must sit out
        the step."""
        while not draft.grow_all(np.array([sequence.slot])):
            if draft.pages_will_be_freed:
                return False
            victim = self._policy.victim(draft)
            draft.preempt(victim)
            if victim is sequence:
                return False
        return True

    def _secure_prefills(self, draft: PlanDraft) -> set[int]:
        """A prefill may lack pages that were set aside for it, where others still use pages that it has given
        up: then it comes before the decodes. Returns the slots of those that must sit out the step."""
        stalled: set[int] = set()
        if not self._kv.num_limited:
            return stalled
        for sequence in sorted(draft.prefilling(), key=arrival):
            start = draft.computed(sequence)
            if sequence.id in draft.preempted or sequence.slot < 0 or draft.room(sequence) > start:
                continue
            while draft.room(sequence) <= start and not draft.pages_will_be_freed:
                draft.preempt(self._policy.victim(draft))
                if sequence.id in draft.preempted:
                    break
            else:
                stalled.add(sequence.slot) if draft.room(sequence) <= start else draft.secure(sequence)
        return stalled

    def _continue_prefills(self, draft: PlanDraft, quota: StepQuota) -> None:
        for sequence in quota.prefills():
            if draft.tokens == 0:
                return
            tokens = self._tokens_for(draft, quota, sequence)
            if tokens and draft.room(sequence) > draft.computed(sequence):
                self._add_chunk(draft, quota, sequence, tokens)

    def _admit(self, draft: PlanDraft, quota: StepQuota) -> None:
        """Waiting sequences, in order, for as long as slots, tokens, rows and pages last."""
        waiting = self._policy.waiting
        while len(waiting) > len(draft.admitted) and draft.num_free_slots and draft.tokens and draft.rows > 0:
            head = quota.next_waiting()
            if head is None:
                return
            tokens = self._tokens_for(draft, quota, head)
            is_held = self._limits.whole_prompts and not tokens
            if is_held or not draft.admit(head, quota.spare_pages(head)):
                return
            draft.rows -= 1
            self._add_chunk(draft, quota, head, tokens)

    def _tokens_for(self, draft: PlanDraft, quota: StepQuota, sequence: Sequence) -> int:
        """Token rows that a chunk of it may have; of a sequence that has to be whole all that it needs, or
        none."""
        if not self._limits.whole_prompts:
            return quota.tokens_for(sequence)
        return len(sequence.tokens) if len(sequence.tokens) <= draft.tokens else 0

    def _add_chunk(self, draft: PlanDraft, quota: StepQuota, sequence: Sequence, tokens: int) -> None:
        """Output rows that no sequence in a slot, or soon in one, needs for its next token may be used for
        scores."""
        coming = min(len(self._policy.waiting) - len(draft.admitted), draft.num_free_slots)
        quota.spend(sequence, draft.add_chunk(sequence, tokens, max(0, draft.rows - max(0, coming))))
