"""First come, first served: every sequence is treated alike, whatever its priority or deadline."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from firelane.engine.policies.forecast import LateSequence
from firelane.engine.sequences.sequence import Sequence, arrival
from firelane.engine.step.draft import PlanDraft
from firelane.engine.step.plan import StepPlan


class FcfsQueue:
    """The waiting sequences in order of arrival."""

    def __init__(self) -> None:
        self._queue: OrderedDict[int, Sequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queue)

    def values(self) -> Iterator[Sequence]:
        return iter(self._queue.values())

    def get(self, request_id: int) -> Sequence | None:
        return self._queue.get(request_id)

    def push(self, sequence: Sequence, *, first: bool = False) -> None:
        self._queue[sequence.id] = sequence
        if first:
            self._queue.move_to_end(sequence.id, last=False)

    def remove(self, sequence: Sequence) -> None:
        del self._queue[sequence.id]

    def num_background(self) -> int:
        return sum(sequence.tenant.background for sequence in self._queue.values())


class FcfsQuota:
    """All of the step for whoever comes first."""

    def __init__(self, draft: PlanDraft, waiting: Iterable[Sequence]) -> None:
        self._draft = draft
        self._waiting = waiting

    def choose_decodes(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        return slots

    def spend_decodes(self, slots: NDArray[np.int64]) -> None:
        pass

    def prefills(self) -> Iterator[Sequence]:
        yield from sorted(self._draft.prefilling(), key=arrival)

    def next_waiting(self) -> Sequence | None:
        head = next((s for s in self._waiting if s.id not in self._draft.admitted), None)
        return head if head is not None and head.slot < 0 else None

    def spare_pages(self, sequence: Sequence) -> int:
        del sequence
        return 0

    def tokens_for(self, sequence: Sequence) -> int:
        return self._draft.tokens_for(sequence)

    def spend(self, sequence: Sequence, tokens: int) -> None:
        pass


class FcfsPolicy:
    """The youngest sequence is preempted; nobody pays."""

    def __init__(self) -> None:
        self.waiting = FcfsQueue()
        self._running_background = 0

    def open_step(self, draft: PlanDraft) -> FcfsQuota:
        return FcfsQuota(draft, self.waiting.values())

    def victim(self, draft: PlanDraft) -> Sequence:
        return max(draft.running(), key=arrival)

    def step_ended(self, tokens: int, seconds: float) -> None:
        pass

    def drew(self, sequences: int, tokens: int) -> None:
        pass

    def unreachable(self, prefilling: Iterable[Sequence]) -> list[LateSequence]:
        """None: deadlines count for nothing here."""
        del prefilling
        return []

    def charge(self, plan: StepPlan, accounts: NDArray[np.int64]) -> None:
        pass

    def added(self, sequence: Sequence) -> None:
        pass

    def started(self, sequence: Sequence) -> None:
        self._running_background += sequence.tenant.background

    def stopped(self, sequence: Sequence) -> None:
        self._running_background -= sequence.tenant.background

    def finished(self, sequence: Sequence) -> None:
        pass

    def num_running_background(self) -> int:
        return self._running_background

    def check_integrity(self, live: Iterable[Sequence], running: Iterable[Sequence]) -> None:
        order = [s.arrival for s in running] + [s.arrival for s in self.waiting.values()]
        assert order == sorted(order), "not first come, first served"
        assert len(order) == len(list(live))
