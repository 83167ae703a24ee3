"""Who gives up slot and blocks when there are too few.

Always the youngest sequence of an account, background work first. Among tenants it is the one that holds most
for its weight. Two rules keep sequences from driving each other out for ever:

- a sequence yields to another tenant only after it has computed twice the tokens that it lost the last time,
  so that what it computes again stays below twice its length;
- a tenant yields to a newcomer only what leaves it no worse off than the newcomer's tenant.

Where nobody yields by these rules, the youngest of all does when a running sequence needs a block: the oldest
running one goes on until its end. Background work has no such protection, but never drives others out.
"""

from __future__ import annotations

from collections.abc import Callable

from firelane.engine.sequence import Sequence
from firelane.engine.table import SequenceTable
from firelane.kv import KvCache


class Preemptor:
    def __init__(self, table: SequenceTable, kv: KvCache) -> None:
        self._table = table
        self._kv = kv

    def for_growth(self) -> Sequence:
        """Who yields when a running sequence needs a block: it may be that sequence itself."""
        running = self._table.running.values()
        if not self._table.accounts.is_shared:
            return next(reversed(running))
        youngest = self._youngest()
        background = [s for s in youngest if s.claim.background]
        if background:
            return max(background, key=_arrival)
        held = self._held(_num_blocks)
        total, weights = sum(held.values()), sum(s.claim.weight for s in youngest)
        above = [s for s in youngest if held[s.account] * weights > s.claim.weight * total]
        yielding = [s for s in above if self._may_yield(s)]
        if yielding:
            return max(yielding, key=lambda s: held[s.account] / s.claim.weight)
        return max(youngest, key=_arrival)

    def for_newcomer(self, head: Sequence) -> Sequence | None:
        """Who yields to a waiting sequence of another account that lacks a slot, or else blocks."""
        if head.claim.background:
            return None
        youngest = self._youngest()
        background = [s for s in youngest if s.claim.background]
        if background:
            return max(background, key=_arrival)
        size = _one if not self._table.num_free_slots else _num_blocks
        held = self._held(size)
        need = 1 if size is _one else -(-len(head.tokens) // self._kv.block_size)
        level = (held.get(head.account, 0) + need) / head.claim.weight
        yielding = [
            s
            for s in youngest
            if s.account != head.account
            and (held[s.account] - size(s)) / s.claim.weight >= level
            and self._may_yield(s)
        ]
        return max(yielding, key=lambda s: held[s.account] / s.claim.weight, default=None)

    def preempt(self, sequence: Sequence) -> None:
        sequence.lost = max(self._computed(sequence), 1)
        self._table.preempt(sequence)

    def _youngest(self) -> list[Sequence]:
        """The youngest running sequence of each account; within one, `running` is in order of arrival."""
        return list({s.account: s for s in self._table.running.values()}.values())

    def _held(self, size: Callable[[Sequence], int]) -> dict[int, int]:
        held: dict[int, int] = {}
        for sequence in self._table.running.values():
            if not sequence.claim.background:
                held[sequence.account] = held.get(sequence.account, 0) + size(sequence)
        return held

    def _may_yield(self, sequence: Sequence) -> bool:
        return self._computed(sequence) >= 2 * sequence.lost

    def _computed(self, sequence: Sequence) -> int:
        prefilling = sequence.id in self._table.prefilling
        return sequence.computed if prefilling else int(self._table.length[sequence.slot])


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival


def _one(sequence: Sequence) -> int:
    del sequence
    return 1


def _num_blocks(sequence: Sequence) -> int:
    return len(sequence.blocks) if sequence.blocks is not None else 0
