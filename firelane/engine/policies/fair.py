"""Fair sharing between tenants: the tenant that is behind comes first, over-share tenants and background work
have a limited part of each step, and make room for arriving requests."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from firelane.engine.policies.account_queue import by_turn
from firelane.engine.policies.accounts import BURST_TOKENS, Accounts, FairQueue
from firelane.engine.policies.deadlines import DeadlineWatch
from firelane.engine.policies.forecast import Forecast, LateSequence
from firelane.engine.policies.urgent_arrivals import admit_urgent
from firelane.engine.policies.victims import VictimChoice, firmness
from firelane.engine.sequences.sequence import Sequence, arrival
from firelane.engine.step.draft import PlanDraft
from firelane.engine.step.plan import StepPlan
from firelane.engine.step.step_time import StepTimeModel

SHORT_STEP = 1.5
"""Length of a step of low-priority work alone, relative to the shortest step."""
WITH_DECODES = 1.25
"""The same, for a step in which background work joins decodes of others."""
WITH_DUE = 1.1
"""The same, for a step in which low-priority work joins short prompts that are due."""
SHARE_WITH_DUE = 16
"""While prompts of others are due, low-priority work gets up to one token for so many of theirs."""
FEW_TOKENS = 7
"""Low-priority tokens of a step that is made short to see how long a short step takes."""


class StepShare:
    """The part of a step that is left to low-priority work: background work and over-share tenants.

    While only these work, their steps are short, so that an arriving request soon gets its turn; while
    prompts of others are due they get what costs those hardly any time. With this, and the arriving request
    first, the time to its first token is about that on an empty server, plus half a short step. One tenant
    alone is never low-priority, and nothing here applies. low: mask of low-priority accounts.
    """

    def __init__(self, accounts: Accounts, times: StepTimeModel, max_tokens: int) -> None:
        self._accounts = accounts
        self._times = times
        self._max_tokens = max_tokens

    def tokens(self, low: NDArray[np.bool_], due: int, decodes: int) -> int:
        """Low-priority tokens of a step in which others want `due` tokens of prompts and `decodes`."""
        if due:
            cheap = self._tokens_within(WITH_DUE) - due - decodes
            return max(0, min(self._max_tokens - decodes - due, max(1, due // SHARE_WITH_DUE, cheap)))
        if not self._times.knows(decodes + FEW_TOKENS):
            return FEW_TOKENS
        if decodes and self._accounts.background[low].all():
            return max(1, self._tokens_within(WITH_DECODES) - decodes)
        return max(1, self._tokens_within(SHORT_STEP))

    def comes_first(self, account: int, low: NDArray[np.bool_]) -> bool:
        """Prompts of this account, which is not low-priority, are not far ahead of over-share tenants."""
        accounts = self._accounts
        rivals = accounts.counter[low & ~accounts.background]
        burst = BURST_TOKENS / accounts.weight[account]
        return not len(rivals) or accounts.counter[account] <= rivals.min() + burst

    def _tokens_within(self, factor: float) -> int:
        return int(min(self._max_tokens, self._times.tokens_within(factor)))


RESERVE = 8
"""One in so many slots and pages is left free by the admission of low-priority work."""


class FairQuota:
    """Low-priority work gets `low_tokens` of the step; prefills and admissions are in order of virtual
    time."""

    def __init__(
        self,
        draft: PlanDraft,
        accounts: Accounts,
        waiting: FairQueue,
        low: NDArray[np.bool_] | None = None,
        low_tokens: int = 0,
        *,
        has_urgent: bool = False,
    ) -> None:
        """low: mask of low-priority accounts; None where there are none. has_urgent: some sequences have a
        priority or a deadline."""
        self._draft = draft
        self._accounts = accounts
        self._counter = accounts.counter.copy() if accounts.is_shared else accounts.counter
        self._heads = waiting.heads(self._counter, draft.admitted)
        self._low = low
        self._low_tokens = low_tokens
        self._skip: NDArray[np.bool_] | None = None
        self._order = by_turn(accounts.clock()) if has_urgent else arrival

    def choose_decodes(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Low-priority work takes turns, background work last."""
        if self._low is None:
            return slots
        table = self._draft.table
        is_low = self._low[table.account[slots]]
        low = slots[is_low]
        if len(low) <= self._low_tokens:
            return slots
        background = self._accounts.background[table.account[low]]
        turns = np.lexsort((table.last_step[low], background))[: self._low_tokens]
        return np.sort(np.concatenate([slots[~is_low], low[turns]]))

    def spend_decodes(self, slots: NDArray[np.int64]) -> None:
        if not self._accounts.is_shared:
            return
        accounts = self._draft.table.account[slots]
        self._accounts.charge_each(accounts, 1, self._counter)
        if self._low is not None:
            self._low_tokens = max(0, self._low_tokens - int(np.count_nonzero(self._low[accounts])))

    def prefills(self) -> Iterator[Sequence]:
        """Each time that of the account that is most behind, low-priority work last."""
        prefilling = self._draft.prefilling()
        if not self._accounts.is_shared:
            yield from sorted(prefilling, key=self._order)
            return
        queues: dict[int, deque[Sequence]] = {}
        for sequence in sorted(prefilling, key=self._order):
            queues.setdefault(sequence.account, deque()).append(sequence)
        turns: list[tuple[bool, bool, float, int]] = []
        background, low = self._accounts.background, self._low
        ranks = {a: (bool(background[a]), low is not None and bool(low[a])) for a in queues}
        for account in queues:
            heappush(turns, (*ranks[account], self._counter[account], account))
        while turns:
            account = heappop(turns)[-1]
            yield queues[account].popleft()
            if queues[account]:
                heappush(turns, (*ranks[account], self._counter[account], account))

    def next_waiting(self) -> Sequence | None:
        head = self._heads.best(self._skip)
        while head is not None and self._is_low(head) and (not self._low_tokens or self._is_reserved()):
            self._skip = self._low
            head = self._heads.best(self._skip)
        return head

    def spare_pages(self, sequence: Sequence) -> int:
        spare = self._draft.limits.num_blocks // RESERVE
        return spare if self._is_low(sequence) and self._draft.has_running else 0

    def tokens_for(self, sequence: Sequence) -> int:
        tokens = self._draft.tokens_for(sequence)
        return min(tokens, self._low_tokens) if self._is_low(sequence) else tokens

    def spend(self, sequence: Sequence, tokens: int) -> None:
        if self._accounts.is_shared:
            self._accounts.charge(sequence.account, tokens, self._counter)
        if self._is_low(sequence):
            self._low_tokens = max(0, self._low_tokens - tokens)

    def _is_low(self, sequence: Sequence) -> bool:
        return self._low is not None and bool(self._low[sequence.account])

    def _is_reserved(self) -> bool:
        """The free slots are left to those who come before low-priority work."""
        reserve = self._draft.limits.max_num_seqs // RESERVE
        return self._draft.has_running and self._draft.num_free_slots <= reserve


class FairPolicy:
    """Accounts of tenants, and the step times that tell how much low-priority work a step can take."""

    def __init__(self, max_tokens: int, clock: Callable[[], float] = time.monotonic) -> None:
        """max_tokens: of a step. clock: in seconds, that of deadlines, too."""
        self.accounts = Accounts(clock)
        self.waiting = FairQueue(self.accounts)
        self.times = StepTimeModel()
        self._forecast = Forecast(self.times, max_tokens, clock)
        self._deadlines = DeadlineWatch(self.accounts, self.waiting, self._forecast)
        self._max_tokens = max_tokens
        self._share = StepShare(self.accounts, self.times, max_tokens)

    def open_step(self, draft: PlanDraft) -> FairQuota:
        low, has_urgent = self._low_priority(), self._deadlines.num_urgent > 0
        if has_urgent and self.waiting:
            heads = self.waiting.heads(self.accounts.counter, draft.admitted)
            admit_urgent(draft, heads, self._max_tokens, self.accounts.clock(), skip=low)
        if low is None:
            self._admit_behind(draft)
            return FairQuota(draft, self.accounts, self.waiting, has_urgent=has_urgent)
        self._admit_first(draft, low)
        low_tokens = self._low_tokens(draft, low)
        return FairQuota(draft, self.accounts, self.waiting, low, low_tokens, has_urgent=has_urgent)

    def victim(self, draft: PlanDraft) -> Sequence:
        has_urgent = self._deadlines.num_urgent > 0
        if not self.accounts.is_shared:
            return max(draft.running(), key=firmness if has_urgent else arrival)
        return VictimChoice(draft, has_urgent=has_urgent).for_growth()

    def step_ended(self, tokens: int, seconds: float) -> None:
        self.times.note(tokens, seconds)
        self._forecast.step_ended(seconds)

    def drew(self, sequences: int, tokens: int) -> None:
        self._forecast.drew(sequences, tokens)

    def unreachable(self, prefilling: Iterable[Sequence]) -> list[LateSequence]:
        return self._deadlines.unreachable(prefilling)

    def charge(self, plan: StepPlan, accounts: NDArray[np.int64]) -> None:
        ours = self.accounts
        for admission in plan.admissions:
            tokens = len(admission.sequence.tokens)
            self._forecast.admitted(tokens, admission.sequence.computed)
        if ours.is_shared:
            ours.charge_each(accounts[plan.decode_slots], 1, ours.counter)
            for chunk in plan.chunks:
                ours.charge(chunk.sequence.account, chunk.length, ours.counter)

    def added(self, sequence: Sequence) -> None:
        sequence.account = self.accounts.open(sequence.tenant)
        sequence.arrived_s = self.accounts.clock()
        self._deadlines.added(sequence)

    def started(self, sequence: Sequence) -> None:
        self.accounts.running[sequence.account] += 1
        self.waiting.admitted(sequence)

    def stopped(self, sequence: Sequence) -> None:
        self.accounts.running[sequence.account] -= 1

    def finished(self, sequence: Sequence) -> None:
        self.accounts.close(sequence.account)
        self._deadlines.finished(sequence)

    def num_running_background(self) -> int:
        return self.accounts.running_background()

    def check_integrity(self, live: Iterable[Sequence], running: Iterable[Sequence]) -> None:
        arrivals: dict[int, list[int]] = {}
        for sequence in live:
            arrivals.setdefault(sequence.account, []).append(sequence.arrival)
        for account, order in arrivals.items():
            if not self._deadlines.num_urgent:
                assert order == sorted(order), "not first come, first served"
            assert self.accounts.live[account] == len(order), "live sequences miscounted"
        counts = np.bincount([s.account for s in running], minlength=len(self.accounts.running))
        assert (counts == self.accounts.running).all(), "running sequences miscounted"

    def _low_priority(self) -> NDArray[np.bool_] | None:
        """Mask of low-priority accounts; None where there are none."""
        if not self.accounts.is_shared:
            return None
        self.accounts.expire()
        low = self.accounts.low_priority()
        return low if low.any() else None

    def _low_tokens(self, draft: PlanDraft, low: NDArray[np.bool_]) -> int:
        """Low-priority tokens of this step, when all who come before it and can have a slot have it."""
        table = draft.table
        decodes = int(np.count_nonzero(draft.can_decode() & ~low[table.account]))
        due = sum(
            len(s.tokens) - draft.computed(s)
            for s in draft.prefilling()
            if not low[s.account] and self._share.comes_first(s.account, low)
        )
        return self._share.tokens(low, due, decodes)

    def _admit_first(self, draft: PlanDraft, low: NDArray[np.bool_]) -> None:
        """Admit those who come before low-priority work, if need be in the place of others; their chunks
        follow in this step, or the next ones."""
        if not self.waiting:
            return
        background = self.accounts.background
        others_yield = bool(self.accounts.running[background].any())
        skip = background if others_yield else low
        heads = self.waiting.heads(self.accounts.counter, draft.admitted)
        prefilling = [s for s in draft.prefilling() if not low[s.account]]
        pending = sum(len(s.tokens) - draft.computed(s) for s in prefilling)
        while pending < self._max_tokens:
            head = heads.best(skip)
            if head is None or not (others_yield or self._share.comes_first(head.account, low)):
                return
            if not self._make_room(draft, head):
                return
            pending += len(head.tokens) - draft.computed(head)

    def _admit_behind(self, draft: PlanDraft) -> None:
        """Admit those of tenants that are behind each tenant whose prompts are being computed: a long prompt
        has many steps, which others that have a slot, but few tokens, would wait for."""
        if not (self.accounts.is_shared and self.waiting and (prefilling := draft.prefilling())):
            return
        counter, pending = self.accounts.counter, 0
        first, heads = (
            min(counter[s.account] for s in prefilling),
            self.waiting.heads(counter, draft.admitted),
        )
        while pending < self._max_tokens and draft.num_free_slots:
            head = heads.best()
            if head is None or counter[head.account] >= first or not draft.admit(head, spare_pages=0):
                return
            pending += len(head.tokens) - draft.computed(head)

    def _make_room(self, draft: PlanDraft, head: Sequence) -> bool:
        """Admit this sequence, preempting what has to yield to it; False where it must wait."""
        while not (draft.num_free_slots and draft.admit(head, spare_pages=0)):
            lacks_slot = not draft.num_free_slots
            if draft.slots_will_be_freed if lacks_slot else draft.pages_will_be_freed:
                return False
            choice = VictimChoice(draft, has_urgent=self._deadlines.num_urgent > 0)
            victim = choice.for_arrival(head, lacks_slot=lacks_slot)
            if victim is None:
                return False
            draft.preempt(victim)
        return True
