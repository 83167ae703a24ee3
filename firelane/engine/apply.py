"""Plans applied to the engine's state, when their step is submitted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firelane.contract import NO_SNAPSHOT
from firelane.engine.policies.policy import SchedulingPolicy
from firelane.engine.sequences.sequence import Sequence
from firelane.engine.sequences.table import SequenceTable
from firelane.engine.step.plan import Admission, PrefillChunk, StepPlan
from firelane.engine.step.slot_writer import SlotWriter
from firelane.kv import KvCache, StateSave


class PlanApplier:
    """Admits, preempts, takes pages and snapshots, counts what is in flight and charges for it.
    `preemptions`, `prefix_queries` and `prefix_hits` (both in tokens), and `snapshot_hits` (sequences that
    began with a snapshot) only grow."""

    def __init__(
        self, table: SequenceTable, kv: KvCache, policy: SchedulingPolicy, writer: SlotWriter
    ) -> None:
        self._table = table
        self._kv = kv
        self._policy = policy
        self._writer = writer
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.snapshot_hits = 0

    def apply(self, plan: StepPlan) -> None:
        """Only while the step that it was made for is the next one to be submitted."""
        table, slots = self._table, plan.decode_slots
        for sequence in plan.preempted:
            table.preempt(sequence)
        self.preemptions += len(plan.preempted)
        self._admit(plan.admissions)
        for save in plan.saves:
            self._take_snapshot(save)
        if plan.growth.size:
            self._grow_each(plan.growth)
        table.expected_length[slots] += 1
        table.last_step[slots] = plan.step
        drafts = plan.drafts
        table.spares.submitted(slots, drafts and drafts.spares, drafts and drafts.counts)
        for chunk in plan.chunks:
            self._begin(chunk, plan.step)
        self._policy.charge(plan, table.account)

    def _admit(self, admissions: tuple[Admission, ...]) -> None:
        kv = self._kv
        tables = [kv.share(len(a.sequence.tokens), a.hit, a.snapshots_at) for a in admissions]
        for admission, blocks in zip(admissions, tables, strict=True):
            kv.reserve(blocks, admission.hit)
            self._table.start(admission.sequence, admission.slot, blocks)
            self._table.capacity[admission.slot] = blocks.num_blocks * kv.block_size
            self.prefix_queries += len(admission.sequence.tokens)
            self.prefix_hits += blocks.cached_tokens
            self.snapshot_hits += admission.hit.snapshot != NO_SNAPSHOT

    def _take_snapshot(self, save: StateSave) -> None:
        blocks = self._table.at(save.slot).blocks
        assert blocks is not None
        self._kv.states.take(blocks.snapshots, save)

    def _begin(self, chunk: PrefillChunk, step: int) -> None:
        """Count a prefill chunk as in flight."""
        table, sequence, stop = self._table, chunk.sequence, chunk.start + chunk.length
        if stop > table.capacity[chunk.slot]:
            self._grow(sequence, stop)
        sequence.computed, sequence.row_written = stop, True
        if chunk.num_scores:
            sequence.prompt_logprobs_done = chunk.first_score + chunk.num_scores
        table.last_step[chunk.slot] = step
        table.expected_length[chunk.slot] += chunk.samples
        if chunk.is_last:
            del table.prefilling[sequence.id]
            table.decoding[chunk.slot] = True

    def _grow_each(self, slots: NDArray[np.int64]) -> None:
        """One more block for sequences that decode."""
        table, size = self._table, self._kv.block_size
        all_tables = [tables for slot in slots.tolist() if (tables := table.at(slot).blocks)]
        pages = self._kv.grow_each(all_tables)
        self._writer.write_pages(slots, table.capacity[slots] // size, pages)
        table.capacity[slots] += size

    def _grow(self, sequence: Sequence, tokens: int) -> None:
        """Pages of a prefill, of groups with a span."""
        blocks, slot, size = sequence.blocks, sequence.slot, self._kv.block_size
        assert blocks is not None
        for group, index, page in self._kv.grow(blocks, tokens):
            self._writer.write_page(group, slot, index, page)
        self._table.capacity[slot] = -(-tokens // size) * size
