"""The waiting queue of the fair policy: a queue for each account, in order of arrival."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterator

import numpy as np
from numpy.typing import NDArray

from firelane.engine.policies.accounts import Accounts
from firelane.engine.sequences.sequence import Sequence


class FairQueue:
    """A tenant that begins to wait is brought level with those that wait (Accounts.lift)."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._queues: dict[int, OrderedDict[int, Sequence]] = {}
        self._by_id: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def values(self) -> Iterator[Sequence]:
        """Account by account, each in order."""
        for queue in self._queues.values():
            yield from queue.values()

    def get(self, request_id: int) -> Sequence | None:
        return self._by_id.get(request_id)

    def push(self, sequence: Sequence, *, first: bool = False) -> None:
        """Behind, or before, all others of its account."""
        queue = self._queues.get(sequence.account)
        if queue is None:
            if self._accounts.is_shared:
                self._accounts.lift(sequence.account, self._contenders(sequence))
            queue = self._queues[sequence.account] = OrderedDict()
        queue[sequence.id] = self._by_id[sequence.id] = sequence
        if first:
            queue.move_to_end(sequence.id, last=False)

    def remove(self, sequence: Sequence) -> None:
        del self._by_id[sequence.id]
        queue = self._queues[sequence.account]
        del queue[sequence.id]
        if not queue:
            del self._queues[sequence.account]

    def heads(self, counter: NDArray[np.float64], admitted: Container[int] = ()) -> QueueHeads:
        """The first of each account, less those with these ids."""
        return QueueHeads({a: iter(queue.values()) for a, queue in self._queues.items()}, counter, admitted)

    def num_background(self) -> int:
        background = self._accounts.background
        if not self._accounts.num_background:
            return 0
        return sum(len(queue) for account, queue in self._queues.items() if background[account])

    def _contenders(self, sequence: Sequence) -> list[int]:
        background = self._accounts.background
        return [account for account in self._queues if background[account] == sequence.tenant.background]


class QueueHeads:
    """Cursors over the queues of a draft: what it has admitted is passed over. Valid until a queue
    changes."""

    def __init__(
        self,
        queues: dict[int, Iterator[Sequence]],
        counter: NDArray[np.float64],
        admitted: Container[int],
    ) -> None:
        self._queues = queues
        self._counter = counter
        self._admitted = admitted
        self._heads = {account: next(queue) for account, queue in queues.items()}

    def best(self, skip: NDArray[np.bool_] | None = None) -> Sequence | None:
        """The sequence to admit next, but for accounts in `skip` and those whose first one still waits for
        the end of a step in flight. Background work only where no other waits."""
        self._pass_admitted()
        heads = list(self._heads.values())
        if len(heads) > 1 and not all(sequence.tenant.background for sequence in heads):
            heads = [sequence for sequence in heads if not sequence.tenant.background]
        able = [s for s in heads if s.slot < 0 and (skip is None or not skip[s.account])]
        return min(able, key=self._rank) if len(able) > 1 else able[0] if able else None

    def _pass_admitted(self) -> None:
        for account in [a for a, head in self._heads.items() if head.id in self._admitted]:
            following = next((s for s in self._queues[account] if s.id not in self._admitted), None)
            if following is None:
                del self._heads[account]
            else:
                self._heads[account] = following

    def _rank(self, sequence: Sequence) -> tuple[float, int]:
        return float(self._counter[sequence.account]), sequence.arrival
