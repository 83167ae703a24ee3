"""A plan in the making."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firelane.contract import NO_SNAPSHOT, StepLimits
from firelane.engine.sequences.sequence import Sequence
from firelane.engine.sequences.table import SequenceTable
from firelane.engine.step.plan import Admission, PrefillChunk, StepPlan
from firelane.kv import KvCache, PageBudget, PrefixHit, StateSave


class PlanDraft:
    """The plan so far, and what is left of the step: token rows, output rows, slots and pages. Reads
    the engine's state, and changes none of it."""

    def __init__(self, table: SequenceTable, kv: KvCache, limits: StepLimits, drawn: int) -> None:
        """drawn: the last step whose tokens are there when this one begins."""
        self.table = table
        self.drawn = drawn
        self.limits = limits
        self.tokens = limits.max_num_batched_tokens
        self.rows = limits.max_output_rows
        self.pages = PageBudget(kv)
        self.admitted: dict[int, Admission] = {}
        self.preempted: dict[int, Sequence] = {}
        self.has_preempted = False
        self._kv = kv
        self._free_slots = table.free_slots()
        self._slots_pending = table.slots_will_be_freed
        self._growth: dict[int, int] = {}
        """Pages that decodes grow by, by slot."""
        self._secured: dict[int, int] = {}
        self._chunks: list[PrefillChunk] = []
        self._saves: list[StateSave] = []
        """Saves of prefill chunks; which snapshots they get is chosen last."""

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    @property
    def slots_will_be_freed(self) -> bool:
        """Slots wait for a step in flight."""
        return self._slots_pending

    @property
    def pages_will_be_freed(self) -> bool:
        """Pages wait for a step in flight."""
        running = (s for s in self.table.running.values() if s.id not in self.preempted)
        return self.table.pages_will_be_freed(running)

    @property
    def has_running(self) -> bool:
        return bool(self.admitted) or len(self.table.running) > len(self.preempted)

    def running(self) -> list[Sequence]:
        """Sequences that have a slot and keep it, or get one."""
        running = [s for s in self.table.running.values() if s.id not in self.preempted]
        return running + [admission.sequence for admission in self.admitted.values()]

    def held_pages(self, sequence: Sequence) -> int:
        admission = self.admitted.get(sequence.id)
        if admission is not None:
            hit = admission.hit
            return self._kv.num_to_admit(len(sequence.tokens), hit)[0] + sum(map(len, hit.pages))
        return sequence.blocks.num_held if sequence.blocks is not None else 0

    def can_decode(self) -> NDArray[np.bool_]:
        """By slot."""
        return self._kept(self.table.can_decode() & (self.table.last_step <= self.drawn))

    def num_decoding(self) -> int:
        """Sequences that decode in this step, in one in flight beside it, or in one that follows soon."""
        table = self.table
        decodes = table.decoding & ((table.expected_length < table.end) | (table.last_step > self.drawn))
        return int(np.count_nonzero(self._kept(decodes)))

    def _kept(self, slots: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """But for those that the draft takes from their sequences."""
        if self.preempted:
            slots[[sequence.slot for sequence in self.preempted.values()]] = False
        return slots

    def prefilling(self) -> list[Sequence]:
        """Sequences with a slot whose prompt is not all computed."""
        begun = [s for s in self.table.prefilling.values() if s.id not in self.preempted]
        return begun + [admission.sequence for admission in self.admitted.values()]

    def computed(self, sequence: Sequence) -> int:
        """Leading tokens of a running sequence whose K/V exists before this step."""
        admission = self.admitted.get(sequence.id)
        return admission.hit.num_blocks * self._kv.block_size if admission else self.table.computed(sequence)

    def num_pages_to_admit(self, sequence: Sequence) -> int:
        """Pages that it takes to admit the sequence where none of its prefix is cached."""
        return sum(self._kv.num_to_admit(len(sequence.tokens), self._kv.search.no_hit))

    def admit(self, sequence: Sequence, spare_pages: int) -> bool:
        """A slot, and pages for all tokens; False where there are too few pages."""
        hit = self._kv.search.lookup(sequence.chain, sequence.tokens, sequence.reusable_tokens)
        running = len(self.table.running) - len(self.preempted) + len(self.admitted)
        headroom = running * len(self._kv.spans) + spare_pages
        if not self.pages.admit(len(sequence.tokens), hit, headroom):
            return False
        snapshots_at = self._snapshots_at(sequence, hit)
        self.admitted[sequence.id] = Admission(sequence, self._free_slots.pop(), hit, snapshots_at)
        return True

    def _snapshots_at(self, sequence: Sequence, hit: PrefixHit) -> tuple[int, ...]:
        """None for an embedding: hardly any other request begins with its prompt."""
        if sequence.pool is not None:
            return ()
        size = self._kv.block_size
        return self._kv.states.wanted(len(sequence.tokens), hit.num_blocks * size, hit.shared_blocks * size)

    def preempt(self, sequence: Sequence) -> None:
        """Its pages are free at once, its slot when no step in flight has a chunk of it."""
        self.has_preempted = True
        admission = self.admitted.pop(sequence.id, None)
        if admission is not None:
            self._free_slots.append(admission.slot)
            self.pages.cancel(len(sequence.tokens), admission.hit)
            return
        assert sequence.blocks is not None
        self.preempted[sequence.id] = sequence
        self.pages.release(sequence.blocks)
        self.pages.set_aside(-self._secured.pop(sequence.id, 0))
        self.pages.give_back(self._growth.pop(sequence.slot, 0))
        if self.table.is_in_flight(sequence.slot):
            self._slots_pending = True
        else:
            self._free_slots.append(sequence.slot)

    def grow_all(self, slots: NDArray[np.int64]) -> bool:
        """One more block in every group for each of these slots; False, and nothing, where pages lack."""
        each = len(self._kv.spans)
        if each * len(slots) > self.pages.available:
            return False
        self.pages.take(each * len(slots))
        self._growth |= dict.fromkeys(slots.tolist(), each)
        return True

    def room(self, sequence: Sequence) -> int:
        """Tokens up to which there are pages for a prefill."""
        admission, blocks = self.admitted.get(sequence.id), sequence.blocks
        if not self._kv.num_limited:
            return len(sequence.tokens)
        if admission:
            _, later = self._kv.num_to_admit(len(sequence.tokens), admission.hit)
            return self.pages.room(admission.hit.num_blocks, later)
        assert blocks is not None
        if not blocks.prefill_tokens:
            return len(sequence.tokens)
        return self.pages.room(blocks.num_blocks, blocks.set_aside + self._secured.get(sequence.id, 0))

    def tokens_for(self, sequence: Sequence) -> int:
        """Token rows that a chunk of this sequence may have. Beside others it has a limit of its own, as all
        have by vLLM's long_prefill_token_threshold."""
        if not sequence.chunk_tokens or len(self.table.running) + len(self.table.waiting) < 2:
            return self.tokens
        return min(self.tokens, sequence.chunk_tokens)

    def secure(self, sequence: Sequence) -> None:
        """Set pages aside for at least one token of a prefill."""
        self._secured[sequence.id] = self._kv.num_limited
        self.pages.set_aside(self._kv.num_limited)

    def add_chunk(self, sequence: Sequence, tokens: int, spare_rows: int) -> int:
        """The next chunk of a prefill, of at most so many tokens; it may use one output row, and `spare_rows`
        more for scores. It ends where a snapshot is wanted. Returns its length."""
        start, known = self.computed(sequence), len(sequence.tokens)
        wanted = self._wanted(sequence)
        cut = next((n for n in wanted if n > start), known)
        length = min(known, self.room(sequence), cut, start + tokens) - start
        first_score = max(start, sequence.prompt_logprobs_done)
        if first_score < sequence.prompt_len - 1:
            length = min(length, first_score - start + 1 + spare_rows)
        stop = start + length
        num_scores = max(0, min(stop, sequence.prompt_len - 1) - first_score)
        samples = stop == known < sequence.end
        self._take_pages(sequence, stop)
        self.tokens -= length
        self.rows -= max(0, num_scores + samples - 1)
        admission = self.admitted.get(sequence.id)
        slot = admission.slot if admission else sequence.slot
        writes_row = admission is not None or not sequence.row_written
        is_last = stop == known
        snapshot = self._begins_with(sequence) if writes_row else NO_SNAPSHOT
        self._chunks.append(
            PrefillChunk(
                *(sequence, slot, start, length, first_score, num_scores, samples, writes_row, is_last),
                snapshot,
            )
        )
        if stop in wanted or (is_last and self._may_have_latest(sequence, stop)):
            self._saves.append(StateSave(slot, stop, NO_SNAPSHOT, is_latest=stop not in wanted))
        return length

    def _wanted(self, sequence: Sequence) -> tuple[int, ...]:
        """Lengths at which its prefill leaves snapshots, as long as there are free ones."""
        if self._kv.states.num_free <= len(self._saves):
            return ()
        admission, blocks = self.admitted.get(sequence.id), sequence.blocks
        if admission:
            return admission.snapshots_at
        return blocks.snapshots.wanted if blocks is not None else ()

    def _begins_with(self, sequence: Sequence) -> int:
        """The snapshot of a sequence that has computed nothing in its slot yet."""
        admission, blocks = self.admitted.get(sequence.id), sequence.blocks
        if admission:
            return admission.hit.snapshot
        return blocks.snapshots.read if blocks is not None else NO_SNAPSHOT

    def _may_have_latest(self, sequence: Sequence, tokens: int) -> bool:
        """A snapshot after so many tokens replaces the sequence's one before, as the next turn of a
        conversation begins with the last one."""
        states, blocks = self._kv.states, sequence.blocks
        if tokens % self._kv.block_size or sequence.pool is not None or not states.count:
            return False
        if blocks is not None and blocks.snapshots.has_latest:
            return True
        return states.latest_left > sum(save.is_latest for save in self._saves)

    def _save_decodes(self, slots: NDArray[np.int64], positions: NDArray[np.int32]) -> None:
        """A snapshot of each decode that fills a block."""
        if not self._kv.states.count:
            return
        lengths = positions + 1
        fills = lengths % self._kv.block_size == 0
        for slot, tokens in zip(slots[fills].tolist(), lengths[fills].tolist(), strict=True):
            if self._may_have_latest(self.table.at(slot), tokens):
                self._saves.append(StateSave(slot, tokens, NO_SNAPSHOT, is_latest=True))

    def _chosen_saves(self) -> tuple[StateSave, ...]:
        """The saves with free snapshots, but for those that a chunk of this step begins with, as far as there
        are."""
        if not self._saves:
            return ()
        read = {admission.hit.snapshot for admission in self.admitted.values()}
        free = (snapshot for snapshot in self._kv.states.free() if snapshot not in read)
        return tuple(save._replace(snapshot=s) for save, s in zip(self._saves, free, strict=False))

    def plan(self, step: int, slots: NDArray[np.int64], positions: NDArray[np.int32]) -> StepPlan:
        self._save_decodes(slots, positions)
        return StepPlan(
            step=step,
            decode_slots=slots,
            decode_positions=positions,
            growth=np.fromiter(self._growth, np.int64, len(self._growth)),
            chunks=tuple(self._chunks),
            admissions=tuple(self.admitted.values()),
            preempted=tuple(self.preempted.values()),
            saves=self._chosen_saves(),
            changes=self.table.changes,
            states=self.table.spares.of(slots),
        )

    def _take_pages(self, sequence: Sequence, stop: int) -> None:
        """Pages of groups with a span: those of causal groups came with the admission."""
        if not self._kv.num_limited:
            return
        admission, blocks = self.admitted.get(sequence.id), sequence.blocks
        if admission:
            _, later = self._kv.num_to_admit(len(sequence.tokens), admission.hit)
            blocks_more = -(-stop // self._kv.block_size) - admission.hit.num_blocks
            self.pages.take(blocks_more * self._kv.num_limited, later)
        elif blocks is not None:
            set_aside = blocks.set_aside + self._secured.get(sequence.id, 0)
            self.pages.take(self._kv.num_to_grow(blocks, stop), set_aside)
