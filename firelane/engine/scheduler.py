"""Chooses what the next step computes: continuous batching under a token budget, fair between tenants.

Decodes first, then prefills that have begun, then new admissions: within a tenant first come, first served,
and between tenants whoever is behind (fairness). A sequence is admitted only with blocks for all of its
tokens, so that only decodes can run out of blocks; then a young sequence is preempted (preemption), and the
oldest goes on until its end. Where tenants, or background work, share the engine, some of it is the crowd:
it gets a part of the step alone, and makes room for others (sharing).

A plan counts as done when it is made: the step after it is planned before its tokens are known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from firelane.backends.contract import StepLimits
from firelane.engine.pace import Pace
from firelane.engine.plan import PrefillChunk, StepPlan
from firelane.engine.preemption import Preemptor
from firelane.engine.sequence import Sequence, Status
from firelane.engine.sharing import Share, StepSharing
from firelane.engine.table import SequenceTable
from firelane.kv import KvCache

RESERVE = 8
"""One in so many slots and blocks is left free by the admission of the crowd."""


@dataclass(slots=True)
class _Budget:
    """What is left of a step: token rows, those of them that the crowd may take, and output rows beyond those
    set aside for each planned sequence. crowd: by account; None where nothing is shared."""

    tokens: int
    crowd_tokens: int
    rows: int
    crowd: NDArray[np.bool_] | None

    def is_crowd(self, sequence: Sequence) -> bool:
        return self.crowd is not None and bool(self.crowd[sequence.account])

    def tokens_for(self, sequence: Sequence) -> int:
        return min(self.tokens, self.crowd_tokens) if self.is_crowd(sequence) else self.tokens

    def spend(self, sequence: Sequence, tokens: int) -> None:
        self.tokens -= tokens
        if self.is_crowd(sequence):
            self.crowd_tokens -= tokens


class Scheduler:
    """Plans steps. `preemptions`, `prefix_queries` and `prefix_hits` (both in tokens) only grow. `pace` is to
    be told how long steps take."""

    def __init__(self, table: SequenceTable, kv: KvCache, limits: StepLimits) -> None:
        # Every sequence in a slot can then decode, or prefill one token, in every step: none can be starved.
        assert limits.max_num_batched_tokens >= limits.max_num_seqs
        assert limits.max_output_rows >= limits.max_num_seqs
        self._table = table
        self._kv = kv
        self._limits = limits
        self.pace = Pace()
        self._sharing = StepSharing(table, self.pace, limits.max_num_batched_tokens)
        self._preemptor = Preemptor(table, kv)
        self._last_step = table.last_step.copy()
        self._arrivals = 0
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0

    def plan(self, step: int) -> StepPlan:
        """The next step; empty where nothing can run before a step in flight has been committed."""
        table, preempted_before = self._table, self.preemptions
        self._last_step[:], self._arrivals = table.last_step, table.arrivals
        share = self._share()
        new_blocks: list[tuple[int, int, int]] = []
        slots = self._decodes(new_blocks, share)
        positions = self._advance(slots, step)
        budget = self._budget(slots, share)
        chunks = self._continue_prefills(step, budget)
        if self.preemptions == preempted_before:
            chunks += self._admit(step, budget)
        return StepPlan(
            step=step,
            decode_slots=slots,
            decode_positions=positions,
            new_blocks=tuple(new_blocks),
            chunks=tuple(chunks),
            free_tokens=budget.tokens,
            free_crowd_tokens=budget.crowd_tokens,
            free_rows=budget.rows,
            is_charged=table.accounts.is_shared,
        )

    def extend(self, plan: StepPlan) -> StepPlan:
        """The same step, joined by sequences that came after it was planned; or, where one of them comes
        before the crowd that is in it, that step planned anew."""
        if self._table.arrivals == self._arrivals:
            return plan
        crowd = self._sharing.crowd()
        if crowd is not None and self._is_outranked(plan, crowd):
            self._withdraw(plan)
            anew = self.plan(plan.step)
            return replace(anew, new_blocks=plan.new_blocks + anew.new_blocks)
        budget = _Budget(plan.free_tokens, plan.free_crowd_tokens, plan.free_rows, crowd)
        chunks = self._admit(plan.step, budget)
        if not chunks:
            return plan
        return replace(
            plan,
            chunks=(*plan.chunks, *chunks),
            free_tokens=budget.tokens,
            free_crowd_tokens=budget.crowd_tokens,
            free_rows=budget.rows,
        )

    def _share(self) -> Share | None:
        """The crowd's part of the step, once those who come before it have slots and blocks."""
        crowd = self._sharing.crowd()
        if crowd is None:
            return None
        self._seat(crowd)
        return self._sharing.share(crowd)

    def _seat(self, crowd: NDArray[np.bool_]) -> None:
        """Admit those who come before the crowd, if need be in the place of others; their chunks follow in
        this step, or the next ones. Nobody is preempted later, when chunks of this step are planned."""
        table = self._table
        background = table.accounts.background
        others_yield = bool(table.accounts.running[background].any())
        skip = background if others_yield else crowd
        pending = sum(len(s.tokens) - s.computed for s in table.prefilling.values() if not crowd[s.account])
        while pending < self._limits.max_num_batched_tokens:
            head = table.waiting.head(skip)
            if head is None or not (others_yield or self._sharing.comes_first(head.account, crowd)):
                return
            if not self._make_room(head):
                return
            pending += len(head.tokens) - head.computed

    def _make_room(self, head: Sequence) -> bool:
        """Start this sequence, preempting who has to yield to it; False where it must wait."""
        table = self._table
        while not (table.num_free_slots and self._start(head, spare_blocks=0)):
            lacks_slot = not table.num_free_slots
            if table.slots_will_be_freed if lacks_slot else table.blocks_will_be_freed:
                return False
            victim = self._preemptor.for_newcomer(head)
            if victim is None:
                return False
            self._preempt(victim)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._preemptor.preempt(sequence)
        self.preemptions += 1

    def _budget(self, slots: NDArray[np.int64], share: Share | None) -> _Budget:
        """What the decodes leave; they are charged."""
        limits, table = self._limits, self._table
        tokens = limits.max_num_batched_tokens - len(slots)
        rows = limits.max_output_rows - len(slots) - len(table.prefilling)
        if table.accounts.is_shared:
            table.accounts.charge_each(table.account[slots], 1)
        if share is None:
            return _Budget(tokens, tokens, rows, None)
        crowded = int(np.count_nonzero(self._sharing.in_crowd(share.crowd, slots)))
        return _Budget(tokens, max(0, share.tokens - crowded), rows, share.crowd)

    def _decodes(self, new_blocks: list[tuple[int, int, int]], share: Share | None) -> NDArray[np.int64]:
        """Slots that decode in this step, each with room for its token."""
        table = self._table
        slots = np.flatnonzero(table.decoding)
        if share is not None:
            slots = self._sharing.choose(slots, share)
        needy = slots[table.length[slots] > table.capacity[slots]]
        if not needy.size:
            return slots
        stalled = [
            sequence.slot
            for sequence in sorted((table.at(slot) for slot in needy.tolist()), key=lambda s: s.arrival)
            if table.decoding[sequence.slot] and not self._grow(sequence, new_blocks)
        ]
        able = table.decoding[slots]
        return slots[able & ~np.isin(slots, stalled)] if stalled else slots[able]

    def _grow(self, sequence: Sequence, new_blocks: list[tuple[int, int, int]]) -> bool:
        """One more block for this sequence, if need be from another; False where it must sit out the step."""
        table, slot = self._table, sequence.slot
        while sequence.blocks is not None:
            block = self._kv.grow(sequence.blocks)
            if block is not None:
                table.capacity[slot] += self._kv.block_size
                new_blocks.append((slot, len(sequence.blocks) - 1, block))
                return True
            if table.blocks_will_be_freed:
                return False
            self._preempt(self._preemptor.for_growth())
        return False

    def _advance(self, slots: NDArray[np.int64], step: int) -> NDArray[np.int32]:
        """Count the decodes' tokens as drawn; returns the positions that draw them."""
        table = self._table
        positions = table.length[slots] - 1
        table.length[slots] += 1
        table.last_step[slots] = step
        ending = slots[table.length[slots] >= table.end[slots]]
        if ending.size:
            table.ending_step[ending] = step
            table.decoding[ending] = False
        return positions

    def _continue_prefills(self, step: int, budget: _Budget) -> list[PrefillChunk]:
        chunks: list[PrefillChunk] = []
        for sequence in self._in_turn(budget):
            if budget.tokens == 0:
                break
            if budget.tokens_for(sequence):
                chunks.append(self._chunk(sequence, step, budget))
        return chunks

    def _in_turn(self, budget: _Budget) -> Iterator[Sequence]:
        """Prefills that have begun: the crowd last, each time that of the account that is most behind."""
        prefilling = self._table.prefilling.values()
        if budget.crowd is None:
            yield from list(prefilling)
            return
        accounts = self._table.accounts
        queues: dict[int, deque[Sequence]] = {}
        for sequence in prefilling:
            queues.setdefault(sequence.account, deque()).append(sequence)
        turns: list[tuple[bool, bool, float, int]] = []
        ranks = {a: (bool(accounts.background[a]), bool(budget.crowd[a])) for a in queues}
        for account in queues:
            heappush(turns, (*ranks[account], accounts.counter[account], account))
        while turns:
            account = heappop(turns)[-1]
            yield queues[account].popleft()
            if queues[account]:
                heappush(turns, (*ranks[account], accounts.counter[account], account))

    def _admit(self, step: int, budget: _Budget) -> list[PrefillChunk]:
        """Sequences from the queue, in order, for as long as slots, tokens, rows and blocks last."""
        table = self._table
        chunks: list[PrefillChunk] = []
        skip: NDArray[np.bool_] | None = None
        while table.waiting and table.num_free_slots and budget.tokens > 0 and budget.rows > 0:
            head = table.waiting.head(skip)
            if head is None:
                break
            if budget.is_crowd(head) and (not budget.crowd_tokens or self._is_reserved()):
                skip = budget.crowd
                continue
            spare = self._limits.num_blocks // RESERVE if budget.is_crowd(head) and table.running else 0
            if not self._start(head, spare_blocks=spare):
                break
            budget.rows -= 1
            chunks.append(self._chunk(head, step, budget))
        return chunks

    def _is_reserved(self) -> bool:
        """The free slots are left to those who come before the crowd."""
        free, slots = self._table.num_free_slots, self._limits.max_num_seqs
        return bool(self._table.running) and free <= slots // RESERVE

    def _start(self, sequence: Sequence, *, spare_blocks: int) -> bool:
        """A slot, and blocks for all tokens; False where there are too few blocks."""
        blocks = self._kv.reserve(
            sequence.chain,
            sequence.tokens,
            reusable_tokens=sequence.reusable_tokens,
            headroom_blocks=len(self._table.running) + spare_blocks,
        )
        if blocks is None:
            return False
        self.prefix_queries += len(sequence.tokens)
        self.prefix_hits += blocks.cached_tokens
        self._table.start(sequence, blocks)
        return True

    def _chunk(self, sequence: Sequence, step: int, budget: _Budget) -> PrefillChunk:
        """The next chunk of a prefilling sequence. It may use one output row, and more of them for scores."""
        table, start, slot = self._table, sequence.computed, sequence.slot
        known = int(table.length[slot])
        length = min(known - start, budget.tokens_for(sequence))
        first_score = max(start, sequence.scored)
        if first_score < sequence.prompt_len - 1:
            length = min(length, first_score - start + 1 + self._spare_rows(budget))
        stop = start + length
        num_scores = max(0, min(stop, sequence.prompt_len - 1) - first_score)
        if num_scores:
            sequence.scored = first_score + num_scores
        samples = stop == known < sequence.end
        budget.spend(sequence, length)
        if table.accounts.is_shared:
            table.accounts.charge(sequence.account, length)
        budget.rows -= max(0, num_scores + samples - 1)
        admitted, sequence.installed, sequence.computed = not sequence.installed, True, stop
        table.last_step[slot] = step
        if stop == known:
            self._end_prefill(sequence, step, samples)
        return PrefillChunk(sequence, slot, start, length, first_score, num_scores, samples, admitted)

    def _spare_rows(self, budget: _Budget) -> int:
        """Output rows that no sequence in a slot, or soon in one, needs for its next token."""
        table = self._table
        return max(0, budget.rows - min(len(table.waiting), table.num_free_slots))

    def _end_prefill(self, sequence: Sequence, step: int, samples: bool) -> None:
        table, slot = self._table, sequence.slot
        del table.prefilling[sequence.id]
        table.length[slot] += samples
        if table.length[slot] >= sequence.end:
            table.ending_step[slot] = step
        else:
            table.decoding[slot] = True

    def _is_outranked(self, plan: StepPlan, crowd: NDArray[np.bool_]) -> bool:
        """One that came after `plan` was made, and comes before the crowd, would wait for what the crowd
        should not have in the same step."""
        head = self._table.waiting.head(crowd)
        if (
            head is None
            or head.arrival < self._arrivals
            or not self._sharing.comes_first(head.account, crowd)
        ):
            return False
        crowded = self._sharing.in_crowd(crowd, plan.decode_slots)
        tokens = int(np.count_nonzero(crowded))
        tokens += sum(chunk.length for chunk in plan.chunks if crowd[chunk.sequence.account])
        decodes = len(crowded) - int(np.count_nonzero(crowded))
        return tokens > self._sharing.crowd_tokens(crowd, len(head.tokens), decodes)

    def _withdraw(self, plan: StepPlan) -> None:
        """Undo what `plan` counts as done; admissions, preemptions and new blocks stay."""
        table, slots = self._table, plan.decode_slots
        table.length[slots] -= 1
        for slot in slots[table.ending_step[slots] == plan.step].tolist():
            table.ending_step[slot] = -1
            table.decoding[slot] = table.at(slot).status is Status.RUNNING
        for chunk in plan.chunks:
            self._take_back(chunk)
        if plan.is_charged:
            table.accounts.charge_each(table.account[slots], -1)
            for chunk in plan.chunks:
                table.accounts.charge(chunk.sequence.account, -chunk.length)
        table.last_step[:] = self._last_step
        table.prefilling = dict(sorted(table.prefilling.items(), key=lambda item: item[1].arrival))

    def _take_back(self, chunk: PrefillChunk) -> None:
        table, sequence, slot = self._table, chunk.sequence, chunk.slot
        if sequence.status is not Status.RUNNING:
            return
        if sequence.id not in table.prefilling:
            table.length[slot] -= chunk.samples
            table.ending_step[slot], table.decoding[slot] = -1, False
            table.prefilling[sequence.id] = sequence
        sequence.computed = chunk.start
        sequence.scored = chunk.first_score if chunk.num_scores else sequence.scored
        sequence.installed = not chunk.admitted
