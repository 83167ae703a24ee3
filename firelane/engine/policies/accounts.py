"""Weighted fair queueing over tenants, in tokens.

Each tenant has a virtual time: tokens computed for it, over its weight (start-time fair queueing, Goyal et
al. 1996; with tokens as the unit of service, the virtual token counter of Sheng et al. 2024, "Fairness in
Serving Large Language Models"). Whoever is behind comes first; within a tenant, who came first, or is more
urgent (account_queue.py). Nothing is kept for those who want nothing: a tenant alone gets everything. One
that comes back from a pause starts at the virtual time of those who wait, so that it cannot spend what it
left unused. Two backlogged tenants never differ by more than a constant (their longest requests, and
BURST_TOKENS).

Background work has accounts of its own: it comes after all other work, and is not held against its tenant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.engine.policies.account_queue import AccountQueue
from firelane.engine.sequences.sequence import Sequence, TenantInfo

RECENT_S = 10.0
"""For so long after its last request a tenant is expected back: the others leave it room, and its virtual
time is kept."""
MARGIN = 1.25
"""So many times its share of the running sequences a tenant may have before others come first."""
BURST_TOKENS = 1024
"""Tokens that say how far ahead of the others a tenant with little at work may get before its prompts wait
their turn."""


class Accounts:
    """Arrays with one entry an account: a tenant's interactive work, or its background work. Entries of
    unknown accounts are zero."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._index: dict[tuple[str, bool], int] = {}
        self._free: list[int] = []
        self._next_expiry_s = 0.0
        self.num_background = 0
        self.counter = np.zeros(0, np.float64)
        """Virtual time: tokens over weight, kept while `is_shared`."""
        self.weight = np.zeros(0, np.float64)
        self.live = np.zeros(0, np.int64)
        """Sequences that have not ended."""
        self.running = np.zeros(0, np.int64)
        """Sequences in a slot."""
        self.background = np.zeros(0, np.bool_)
        self._idle_since_s = np.zeros(0, np.float64)

    @property
    def is_shared(self) -> bool:
        """Somebody's work may come before somebody else's. Otherwise no account need be kept."""
        return len(self._index) > 1 or self.num_background > 0

    def open(self, tenant: TenantInfo) -> int:
        """One more live sequence; returns its account. A tenant's weight is that of its latest request."""
        key = (tenant.name, tenant.background)
        account = self._index.get(key)
        if account is None:
            account = self._add(key)
        self.weight[account] = tenant.weight
        self.live[account] += 1
        return account

    def close(self, account: int) -> None:
        """One live sequence has ended."""
        self.live[account] -= 1
        if not self.live[account]:
            self._idle_since_s[account] = self.clock()

    def running_background(self) -> int:
        return int(self.running.sum(where=self.background)) if self.num_background else 0

    def expire(self) -> None:
        """Forget those who have wanted nothing for a while."""
        now_s = self.clock()
        if now_s < self._next_expiry_s:
            return
        self._next_expiry_s = now_s + RECENT_S / 10
        for key, account in list(self._index.items()):
            if not self.live[account] and self._idle_since_s[account] <= now_s - RECENT_S:
                self._drop(key, account)

    def charge(self, account: int, tokens: int, counter: NDArray[np.float64]) -> None:
        """Add to `counter`: the accounts' own, or a copy of it."""
        counter[account] += tokens / self.weight[account]

    def charge_each(self, accounts: NDArray[np.int64], tokens: int, counter: NDArray[np.float64]) -> None:
        """`tokens` for each entry, one entry a sequence."""
        counts = np.bincount(accounts, minlength=len(counter))
        counter += np.divide(counts * tokens, self.weight, where=counts > 0, out=np.zeros(len(counts)))

    def lift(self, account: int, contenders: list[int]) -> None:
        """The account begins to wait: it starts no earlier than those who wait, or than anybody at work."""
        if contenders:
            start = self.counter[contenders].min()
        else:
            same_kind = self.background == self.background[account]
            start = self.counter.max(initial=0.0, where=(self.live > 0) & same_kind)
        self.counter[account] = max(self.counter[account], start)

    def low_priority(self) -> NDArray[np.bool_]:
        """By account: background work, and over-share tenants. These have clearly more than their share of
        the running sequences, and are not behind all others.

        Shares are counted as if one more of the tenants of late came back now.
        """
        ours = ~self.background
        at_work, absent = ours & (self.live > 0), ours & (self.live == 0)
        weights = self.weight.sum(where=at_work) + self.weight.max(initial=0.0, where=absent)
        share = self.weight * (self.running.sum(where=ours) / max(weights, 1e-9))
        above = at_work & (self.running > MARGIN * share + 0.5)
        lowest = np.sort(self.counter[at_work])[:2]
        if len(lowest) == 2:
            above &= self.counter + BURST_TOKENS / np.maximum(self.weight, 1e-9) >= lowest[1]
        return above | (self.background & (self.weight > 0))

    def _add(self, key: tuple[str, bool]) -> int:
        if not self._free:
            self._enlarge()
        account = self._free.pop()
        self._index[key] = account
        self.background[account] = key[1]
        self.num_background += key[1]
        self.counter[account] = 0.0
        return account

    def _drop(self, key: tuple[str, bool], account: int) -> None:
        del self._index[key]
        self.num_background -= key[1]
        self.weight[account] = self.counter[account] = 0.0
        self.background[account] = False
        self._free.append(account)

    def _enlarge(self) -> None:
        size = len(self.counter)
        more = max(8, size)
        self.counter = _longer(self.counter, more)
        self.weight = _longer(self.weight, more)
        self.live = _longer(self.live, more)
        self.running = _longer(self.running, more)
        self.background = _longer(self.background, more)
        self._idle_since_s = _longer(self._idle_since_s, more)
        self._free += range(size + more - 1, size - 1, -1)


def _longer(old: NDArray[Any], more: int) -> NDArray[Any]:
    return np.concatenate([old, np.zeros(more, old.dtype)])


class FairQueue:
    """A tenant that begins to wait is brought level with those that wait (Accounts.lift)."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._queues: dict[int, AccountQueue] = {}
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
        """Behind, or before, all others of its account that are as urgent."""
        queue = self._queues.get(sequence.account)
        if queue is None:
            if self._accounts.is_shared:
                self._accounts.lift(sequence.account, self._contenders(sequence))
            queue = self._queues[sequence.account] = AccountQueue()
        self._by_id[sequence.id] = sequence
        queue.push(sequence, first=first)

    def remove(self, sequence: Sequence) -> None:
        del self._by_id[sequence.id]
        queue = self._queues[sequence.account]
        queue.remove(sequence)
        if not queue:
            del self._queues[sequence.account]

    def admitted(self, sequence: Sequence) -> None:
        """One that was removed has got a slot."""
        queue = self._queues.get(sequence.account)
        if queue is not None:
            queue.admitted()

    def by_account(self) -> dict[int, Iterator[Sequence]]:
        """The sequences of each account, in the order in which they get slots."""
        now_s = self._accounts.clock()
        return {account: queue.in_turn(now_s) for account, queue in self._queues.items()}

    def heads(self, counter: NDArray[np.float64], admitted: Container[int] = ()) -> QueueHeads:
        """The first of each account, less those with these ids."""
        return QueueHeads(self.by_account(), counter, admitted)

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
