"""Chooses what the next step computes: continuous batching, first come first served, under a token budget.

Decodes first, then prefills that have begun, then new admissions. A sequence is admitted only with blocks
for all of its tokens, so that only decodes can run out of blocks; then the youngest sequence is preempted,
and the oldest finishes first. A plan counts as done when it is made: the step after it is planned before
its tokens are known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from firelane.backends.contract import StepLimits
from firelane.engine.plan import PrefillChunk, StepPlan
from firelane.engine.sequence import Sequence
from firelane.engine.table import SequenceTable
from firelane.kv import KvCache


@dataclass(slots=True)
class _Budget:
    """What is left of a step: token rows, and output rows beyond those set aside for each planned
    sequence."""

    tokens: int
    rows: int


class Scheduler:
    """Plans steps. `preemptions`, `prefix_queries` and `prefix_hits` (both in tokens) only grow."""

    def __init__(self, table: SequenceTable, kv: KvCache, limits: StepLimits) -> None:
        # Every sequence in a slot can then decode, or prefill one token, in every step: none can be starved.
        assert limits.max_num_batched_tokens >= limits.max_num_seqs
        assert limits.max_output_rows >= limits.max_num_seqs
        self._table = table
        self._kv = kv
        self._limits = limits
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0

    def plan(self, step: int) -> StepPlan:
        """The next step; empty where nothing can run before a step in flight has been committed."""
        preempted_before = self.preemptions
        new_blocks: list[tuple[int, int, int]] = []
        slots = self._decodes(new_blocks)
        positions = self._advance(slots, step)
        budget = _Budget(
            tokens=self._limits.max_num_batched_tokens - len(slots),
            rows=self._limits.max_output_rows - len(slots) - len(self._table.prefilling),
        )
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
            free_rows=budget.rows,
        )

    def extend(self, plan: StepPlan) -> StepPlan:
        """The same step, joined by sequences that came after it was planned."""
        budget = _Budget(plan.free_tokens, plan.free_rows)
        chunks = self._admit(plan.step, budget)
        if not chunks:
            return plan
        joined = (*plan.chunks, *chunks)
        return replace(plan, chunks=joined, free_tokens=budget.tokens, free_rows=budget.rows)

    def _decodes(self, new_blocks: list[tuple[int, int, int]]) -> NDArray[np.int64]:
        """Slots that decode in this step, each with room for its token."""
        table = self._table
        slots = np.flatnonzero(table.decoding)
        needy = slots[table.length[slots] > table.capacity[slots]]
        if not needy.size:
            return slots
        stalled = [
            slot
            for slot in needy[np.argsort(table.arrival[needy])].tolist()
            if table.decoding[slot] and not self._grow(slot, new_blocks)
        ]
        able = table.decoding.copy()
        able[stalled] = False
        return np.flatnonzero(able)

    def _grow(self, slot: int, new_blocks: list[tuple[int, int, int]]) -> bool:
        """One more block for this sequence, if need be from the youngest; False where it must sit out the
        step."""
        table = self._table
        sequence = table.sequences[slot]
        assert sequence is not None
        while sequence.blocks is not None:
            block = self._kv.grow(sequence.blocks)
            if block is not None:
                table.capacity[slot] += self._kv.block_size
                new_blocks.append((slot, len(sequence.blocks) - 1, block))
                return True
            if table.blocks_will_be_freed:
                return False
            table.preempt(table.youngest())
            self.preemptions += 1
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
        for sequence in list(self._table.prefilling.values()):
            if budget.tokens == 0:
                break
            chunks.append(self._chunk(sequence, step, budget, admitted=False))
        return chunks

    def _admit(self, step: int, budget: _Budget) -> list[PrefillChunk]:
        """Sequences from the queue, in order, for as long as slots, tokens, rows and blocks last."""
        table = self._table
        chunks: list[PrefillChunk] = []
        while table.waiting and table.num_free_slots and budget.tokens > 0 and budget.rows > 0:
            sequence = next(iter(table.waiting.values()))
            if sequence.slot >= 0:
                break
            blocks = self._kv.reserve(
                sequence.chain,
                sequence.tokens,
                reusable_tokens=sequence.reusable_tokens,
                headroom_blocks=len(table.running),
            )
            if blocks is None:
                break
            self.prefix_queries += len(sequence.tokens)
            self.prefix_hits += blocks.cached_tokens
            table.start(sequence, blocks)
            budget.rows -= 1
            chunks.append(self._chunk(sequence, step, budget, admitted=True))
        return chunks

    def _chunk(self, sequence: Sequence, step: int, budget: _Budget, *, admitted: bool) -> PrefillChunk:
        """The next chunk of a prefilling sequence. It may use one output row, and more of them for scores."""
        table, start, slot = self._table, sequence.computed, sequence.slot
        known = int(table.length[slot])
        length = min(known - start, budget.tokens)
        first_score = max(start, sequence.scored)
        if first_score < sequence.prompt_len - 1:
            length = min(length, first_score - start + 1 + self._spare_rows(budget))
        stop = start + length
        num_scores = max(0, min(stop, sequence.prompt_len - 1) - first_score)
        if num_scores:
            sequence.scored = first_score + num_scores
        samples = stop == known < sequence.end
        budget.tokens -= length
        budget.rows -= max(0, num_scores + samples - 1)
        sequence.computed = stop
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
