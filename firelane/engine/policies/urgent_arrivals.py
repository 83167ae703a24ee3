"""Arriving requests that go before prompts that are being computed, or take the place of running ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firelane.engine.policies.account_queue import by_turn
from firelane.engine.policies.accounts import QueueHeads
from firelane.engine.policies.victims import VictimChoice
from firelane.engine.sequences.sequence import Sequence
from firelane.engine.step.draft import PlanDraft


def admit_urgent(
    draft: PlanDraft, heads: QueueHeads, max_tokens: int, now_s: float, skip: NDArray[np.bool_] | None
) -> None:
    """Admit those that are next and more urgent than what runs of their account, before the tokens of the
    step are given out: a long prompt has many steps, which they would wait for. One with a better priority
    takes, where slots or pages lack, the place of one with a worse one. No more than have max_tokens tokens
    of prompts are admitted so: the others come with the next steps. skip: mask of accounts that have more
    than their share, of which nothing is admitted out of turn."""
    pending = 0
    while pending < max_tokens:
        head = heads.best(skip)
        if head is None or not _admit(draft, head, now_s):
            return
        pending += len(head.tokens) - draft.computed(head)


def _admit(draft: PlanDraft, head: Sequence, now_s: float) -> bool:
    running = [s for s in draft.running() if s.account == head.account]
    if any(s.urgency.priority > head.urgency.priority for s in running):
        return _make_room(draft, head)
    key = by_turn(now_s)
    computing = [key(s) for s in draft.prefilling() if s.account == head.account]
    is_first = bool(computing) and key(head) < min(computing)
    return is_first and draft.num_free_slots > 0 and draft.admit(head, spare_pages=0)


def _make_room(draft: PlanDraft, head: Sequence) -> bool:
    """False where the sequence must wait."""
    while not (draft.num_free_slots and draft.admit(head, spare_pages=0)):
        if draft.pages_will_be_freed if draft.num_free_slots else draft.slots_will_be_freed:
            return False
        victim = VictimChoice(draft, has_urgent=True).for_priority(head)
        if victim is None:
            return False
        draft.preempt(victim)
    return True
