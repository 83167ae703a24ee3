"""All live sequences: the waiting queue, and one row of arrays for each running sequence ("slot").

Who owns a slot:

    free -> start() -> running -> finish() or preempt() -> pending free -> retire() -> free

A slot that is pending free still has a chunk in a step in flight. Its row is left alone until all of them are
committed.
The blocks of a finished sequence stay with it for as long; those of a preempted one are free at once:
whoever takes them runs in a later step, and no chunk of the preempted sequence is in that one.

Within an account (interactive or background work of one tenant) sequences are admitted in order of arrival
and preempted in the reverse order, so that those that run came before those that wait; unless some of them
have a priority or a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from firelane.contract import SlotState
from firelane.engine.sequences.sequence import Sequence, Status
from firelane.engine.sequences.spares import SpareStates
from firelane.kv import BlockTables, KvCache

if TYPE_CHECKING:
    from firelane.engine.policies.lifecycle import SequenceLifecycle


class SequenceTable:
    """Rows by slot, and the queues. Written by itself, when a plan is applied, and when a step is
    committed."""

    def __init__(
        self,
        slots: int,
        kv: KvCache,
        state: SlotState,
        policy: SequenceLifecycle,
        spares: SpareStates | None = None,
    ) -> None:
        self._kv = kv
        self.spares = spares or SpareStates(slots)
        self._state = state
        self._policy = policy
        self.ids = np.zeros(slots, np.int64)
        """Request id."""
        self.account = np.zeros(slots, np.int64)
        """Sequence.account."""
        self.length = np.zeros(slots, np.int32)
        """Tokens, as committed."""
        self.expected_length = np.zeros(slots, np.int32)
        """Tokens once all steps in flight have ended, each with one token of the sequence."""
        self.end = np.zeros(slots, np.int32)
        """The length that finishes the sequence."""
        self.capacity = np.zeros(slots, np.int32)
        """Tokens that its pages have room for."""
        self.lookahead = np.zeros(slots, np.int32)
        """Tokens of the draft that its next step may have."""
        self.publish_at = np.zeros(slots, np.int32)
        """Computed tokens with which one more block is full than the prefix cache knows."""
        self.last_step = np.zeros(slots, np.int64)
        """Last step submitted with a chunk of it."""
        self.decoding = np.zeros(slots, np.bool_)
        """Its prompt is computed, or being computed."""
        self.wants_output = np.zeros(slots, np.bool_)
        """Its sampled tokens are still to be reported."""
        self.logprobs = np.full(slots, -1, np.int32)
        """Numbers of alternatives to report, with the meaning that they have in Sampling."""
        self.sequences: list[Sequence | None] = [None] * slots
        self.waiting = policy.waiting
        self.running: dict[int, Sequence] = {}
        self.prefilling: dict[int, Sequence] = {}
        self.changes = 0
        """Arrivals and ends so far: a plan is made anew when there were some."""
        self._arrivals = 0
        self._free_slots = list(range(slots - 1, -1, -1))
        self._pending_free: list[int] = []
        self._retired_step = 0
        kv.incoming.is_held_up = kv.states.incoming.is_held_up = self.is_released_in_flight

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    @property
    def slots_will_be_freed(self) -> bool:
        """Slots wait for a step in flight."""
        return bool(self._pending_free)

    def free_slots(self) -> list[int]:
        """A copy; the next one to use is the last."""
        return list(self._free_slots)

    def is_in_flight(self, slot: int) -> bool:
        """A step in flight has a chunk of it."""
        return bool(self.last_step[slot] > self._retired_step)

    def can_decode(self) -> NDArray[np.bool_]:
        """By slot: a step could draw its next token."""
        return self.decoding & (self.expected_length < self.end)

    def computed(self, sequence: Sequence) -> int:
        """Leading tokens of a running sequence that exist in its K/V and its recurrent state once all steps
        in flight have ended."""
        if sequence.id in self.prefilling:
            return sequence.computed
        return int(self.expected_length[sequence.slot]) - 1 - self.spares.behind(sequence.slot)

    def pages_will_be_freed(self, running: Iterable[Sequence]) -> bool:
        """Pages of finished sequences, or pages behind a span of a running one, wait for a step in flight."""
        ended = map(self.sequences.__getitem__, self._pending_free)
        if any(s is not None and s.blocks is not None for s in ended):
            return True
        size = self._kv.block_size
        return any(
            self._kv.num_passed(s.blocks, self.computed(s) // size * size)
            for s in running
            if s.blocks is not None
        )

    def is_released_in_flight(self) -> bool:
        """A step in flight still writes to pages that are free: those of a sequence that was preempted."""
        pending = (self.sequences[slot] for slot in self._pending_free)
        return any(sequence is not None and sequence.blocks is None for sequence in pending)

    def num_spare_pages(self) -> int:
        """Free pages that are neither set aside nor likely to be needed soon by what runs."""
        return max(0, self._kv.num_available - len(self.running) * len(self._kv.spans))

    def get(self, request_id: int) -> Sequence | None:
        return self.running.get(request_id) or self.waiting.get(request_id)

    def at(self, slot: int) -> Sequence:
        """The sequence that holds this slot."""
        sequence = self.sequences[slot]
        assert sequence is not None
        return sequence

    def live(self) -> list[Sequence]:
        return [*self.running.values(), *self.waiting.values()]

    def add(self, sequence: Sequence) -> None:
        sequence.arrival = self._arrivals
        self._arrivals += 1
        self.changes += 1
        self._policy.added(sequence)
        self.waiting.push(sequence)

    def start(self, sequence: Sequence, slot: int, blocks: BlockTables) -> None:
        """Give a waiting sequence a free slot and its pages. The executor's row is written before its first
        step (inputs)."""
        self._free_slots.remove(slot)
        self.waiting.remove(sequence)
        self._policy.started(sequence)
        self.running[sequence.id] = self.prefilling[sequence.id] = sequence
        sequence.status, sequence.slot, sequence.blocks = Status.RUNNING, slot, blocks
        sequence.computed, sequence.row_written = blocks.cached_tokens, False
        if not sequence.started:
            sequence.scheduled_s = time.monotonic()
        self.sequences[slot] = sequence
        self.ids[slot], self.account[slot] = sequence.id, sequence.account
        self.length[slot] = self.expected_length[slot] = len(sequence.tokens)
        self.end[slot] = sequence.end
        self.publish_at[slot] = (blocks.published_blocks + 1) * self._kv.block_size
        self.decoding[slot], self.wants_output[slot] = False, True
        self.lookahead[slot] = 0
        self.logprobs[slot] = sequence.sampling.logprobs

    def preempt(self, sequence: Sequence) -> None:
        """Back to the head of its queue: it keeps its tokens and computes their K/V again later."""
        sequence.preempted_tokens = max(self.computed(sequence), 1)
        sequence.preemptions += 1
        self._stop_running(sequence)
        sequence.status = Status.WAITING
        self.waiting.push(sequence, first=True)
        self._release_pages(sequence)
        self._free_slot(sequence.slot)

    def finish(self, sequence: Sequence) -> None:
        """Forget a live sequence; its slot and pages follow when no step in flight needs them."""
        self.changes += 1
        self._policy.finished(sequence)
        if sequence.status is Status.RUNNING:
            self._stop_running(sequence)
            sequence.status = Status.FINISHED
            self.wants_output[sequence.slot] = False
            self._free_slot(sequence.slot)
            return
        self.waiting.remove(sequence)
        sequence.status = Status.FINISHED
        if sequence.slot >= 0:
            self.wants_output[sequence.slot] = False

    def retire(self, step: int) -> None:
        """Step `step` has been committed: free what waited for it."""
        self._retired_step = step
        if self._pending_free:
            waiting, self._pending_free = self._pending_free, []
            for slot in waiting:
                self._free_slot(slot)

    def check_idle(self) -> None:
        """Raise AssertionError unless all slots and pages are free, as they are while no sequence lives."""
        assert len(self._free_slots) == len(self.sequences), "a slot is lost"
        self.spares.check_integrity(self._free_slots)
        held = self._kv.incoming.num_pages
        assert self._kv.num_available == self._kv.num_pages - held, "a page is lost"
        held = self._kv.states.incoming.num_pages
        assert self._kv.states.num_free == self._kv.states.count - held, "a snapshot is lost"

    def check_integrity(self) -> None:
        """Raise AssertionError unless slots, queues, blocks and pool agree."""
        held = [s for s in self.sequences if s is not None]
        busy = {s.slot for s in held}
        assert len(busy) == len(held), "two sequences hold one slot"
        assert sorted([*busy, *self._free_slots]) == list(range(len(self.sequences))), (
            "a slot is lost or twice free"
        )
        running = {s.slot for s in self.running.values()}
        assert set(self._pending_free) == busy - running, "slots that are pending free and running overlap"
        for slot, sequence in enumerate(self.sequences):
            assert sequence is None or sequence.slot == slot, "a sequence does not know its slot"
        for sequence in self.running.values():
            self._check_running(sequence)
        assert not any(s.id in self.running for s in self.waiting.values()), "a sequence waits and runs"
        self._policy.check_integrity(self.live(), self.running.values())
        assert not self.decoding[[slot for slot in range(len(self.sequences)) if slot not in busy]].any()
        self._kv.check_integrity(s.blocks for s in held if s.blocks is not None)
        self.spares.check_integrity([slot for slot in range(len(self.sequences)) if slot not in running])

    def _check_running(self, sequence: Sequence) -> None:
        slot = sequence.slot
        assert sequence.status is Status.RUNNING, f"{sequence}: not running"
        assert sequence.blocks is not None, f"{sequence}: no blocks"
        assert self.ids[slot] == sequence.id, f"{sequence}: row of another"
        assert self.length[slot] <= self.expected_length[slot] <= self.end[slot], f"{sequence}: too long"
        assert self.length[slot] == self.expected_length[slot] or self.is_in_flight(slot), (
            f"{sequence}: in flight without a step"
        )
        assert self.capacity[slot] == sequence.blocks.num_blocks * self._kv.block_size, (
            f"{sequence}: capacity"
        )
        prefilling = sequence.id in self.prefilling
        assert not (prefilling and self.decoding[slot]), f"{sequence}: prefills and decodes"
        assert prefilling or self.decoding[slot], f"{sequence}: would never run again"

    def _stop_running(self, sequence: Sequence) -> None:
        del self.running[sequence.id]
        self._policy.stopped(sequence)
        self.prefilling.pop(sequence.id, None)
        self.decoding[sequence.slot] = False
        self.spares.release(sequence.slot)

    def _release_pages(self, sequence: Sequence) -> None:
        if sequence.blocks is not None:
            self._kv.release(sequence.blocks)
            sequence.blocks = None

    def _free_slot(self, slot: int) -> None:
        if self.is_in_flight(slot):
            self._pending_free.append(slot)
            return
        sequence = self.sequences[slot]
        assert sequence is not None
        if sequence.status is Status.WAITING and sequence.row_written:
            sequence.tokens = self._state.tokens[slot, : self.length[slot]].copy()
        self._release_pages(sequence)
        sequence.slot = -1
        self.sequences[slot] = None
        self.wants_output[slot] = False
        self._free_slots.append(slot)
