"""Plans applied to the engine's state, when their step is submitted."""

from __future__ import annotations

from firelane.engine.plan import Admission, PrefillChunk, StepPlan
from firelane.engine.policies.policy import Policy
from firelane.engine.sequence import Sequence
from firelane.engine.table import SequenceTable
from firelane.kv import KvCache, NewPage

SlotPage = tuple[int, NewPage]
"""A slot, and a page that is new in one of its block tables."""


class PlanApplier:
    """Admits, preempts, takes pages, counts what is in flight and charges for it. `preemptions`,
    `prefix_queries` and `prefix_hits` (both in tokens) only grow."""

    def __init__(self, table: SequenceTable, kv: KvCache, policy: Policy) -> None:
        self._table = table
        self._kv = kv
        self._policy = policy
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0

    def apply(self, plan: StepPlan) -> list[SlotPage]:
        """Returns the pages that sequences with a written row have got."""
        for sequence in plan.preempted:
            self._table.preempt(sequence)
        self.preemptions += len(plan.preempted)
        self._admit(plan.admissions)
        pages: list[SlotPage] = []
        for slot in plan.growth:
            pages += self._grow(self._table.at(slot), int(self._table.capacity[slot]) + 1)
        self._table.in_flight[plan.decode_slots] += 1
        self._table.last_step[plan.decode_slots] = plan.step
        for chunk in plan.chunks:
            pages += self._begin(chunk, plan.step)
        self._policy.charge(plan, self._table.account[plan.decode_slots])
        return pages

    def _admit(self, admissions: tuple[Admission, ...]) -> None:
        kv = self._kv
        tables = [kv.share(len(a.sequence.tokens), a.hit) for a in admissions]
        for admission, blocks in zip(admissions, tables, strict=True):
            kv.reserve(blocks, admission.hit)
            self._table.start(admission.sequence, admission.slot, blocks)
            self._table.capacity[admission.slot] = blocks.num_blocks * kv.block_size
            self.prefix_queries += len(admission.sequence.tokens)
            self.prefix_hits += blocks.cached_tokens

    def _begin(self, chunk: PrefillChunk, step: int) -> list[SlotPage]:
        """Count a prefill chunk as in flight."""
        table, sequence, stop = self._table, chunk.sequence, chunk.start + chunk.length
        pages = self._grow(sequence, stop)
        sequence.computed, sequence.row_written = stop, True
        if chunk.num_scores:
            sequence.prompt_logprobs_done = chunk.first_score + chunk.num_scores
        table.last_step[chunk.slot] = step
        table.in_flight[chunk.slot] += chunk.samples
        if chunk.is_last:
            del table.prefilling[sequence.id]
            table.decoding[chunk.slot] = True
        return pages

    def _grow(self, sequence: Sequence, tokens: int) -> list[SlotPage]:
        blocks, slot = sequence.blocks, sequence.slot
        assert blocks is not None
        if tokens <= self._table.capacity[slot]:
            return []
        pages: list[SlotPage] = [(slot, page) for page in self._kv.grow(blocks, tokens)]
        size = self._kv.block_size
        self._table.capacity[slot] = -(-tokens // size) * size
        return pages
