"""All live sequences: the waiting queue, and one row of arrays for each running sequence ("slot").

Who owns a slot:

    free -> start() -> running -> finish() or preempt() -> limbo -> settle() -> free

A slot in limbo still has a chunk in a step that has not been committed. Its row is left alone until then.
The blocks of a finished sequence stay with it for as long; those of a preempted one are free at once:
whoever takes them runs in a later step, and no chunk of the preempted sequence is in that one.

Within an account (interactive or background work of one tenant) sequences are admitted in order of arrival
and preempted in the reverse order, so that those that run came before those that wait.
"""

from __future__ import annotations

import time

import numpy as np

from firelane.backends.contract import SlotState
from firelane.engine.fairness import Accounts, FairQueue
from firelane.engine.sequence import Sequence, Status
from firelane.kv import BlockTable, KvCache


class SequenceTable:
    """Rows by slot (read by all of the engine, written here and by the scheduler's plan):

    ids: request id. account: of its tenant. length: tokens that exist once all planned steps have ended.
    end: the length that finishes the sequence. capacity: tokens that its blocks have room for. published:
    full blocks that the prefix cache knows. last_step: last step with a chunk of it. ending_step: step of
    its last token, or -1. decoding: its next chunk is one token. reporting: its sampled tokens are still
    wanted. logprobs: as in Sampling.
    """

    def __init__(self, slots: int, kv: KvCache, state: SlotState) -> None:
        self._kv = kv
        self._state = state
        self.ids = np.zeros(slots, np.int64)
        self.account = np.zeros(slots, np.int64)
        self.length = np.zeros(slots, np.int32)
        self.end = np.zeros(slots, np.int32)
        self.capacity = np.zeros(slots, np.int32)
        self.published = np.zeros(slots, np.int32)
        self.last_step = np.zeros(slots, np.int64)
        self.ending_step = np.full(slots, -1, np.int64)
        self.decoding = np.zeros(slots, np.bool_)
        self.reporting = np.zeros(slots, np.bool_)
        self.logprobs = np.full(slots, -1, np.int32)
        self.sequences: list[Sequence | None] = [None] * slots
        self.accounts = Accounts()
        self.waiting = FairQueue(self.accounts)
        self.running: dict[int, Sequence] = {}
        self.prefilling: dict[int, Sequence] = {}
        self._free_slots = list(range(slots - 1, -1, -1))
        self._limbo: list[int] = []
        self.arrivals = 0
        self._settled_step = 0

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    @property
    def slots_will_be_freed(self) -> bool:
        """Slots wait for a step in flight."""
        return bool(self._limbo)

    @property
    def blocks_will_be_freed(self) -> bool:
        """Blocks of finished sequences wait for a step in flight."""
        return any(
            s is not None and s.blocks is not None for s in map(self.sequences.__getitem__, self._limbo)
        )

    def get(self, request_id: int) -> Sequence | None:
        return self.running.get(request_id) or self.waiting.get(request_id)

    def at(self, slot: int) -> Sequence:
        """Who holds this slot."""
        sequence = self.sequences[slot]
        assert sequence is not None
        return sequence

    def live(self) -> list[Sequence]:
        return [*self.running.values(), *self.waiting.values()]

    def add(self, sequence: Sequence) -> None:
        sequence.arrival = self.arrivals
        self.arrivals += 1
        sequence.account = self.accounts.open(sequence.claim)
        self.waiting.push(sequence)

    def start(self, sequence: Sequence, blocks: BlockTable) -> None:
        """Give a waiting sequence a slot and its blocks. The executor's row is written before the step
        (inputs)."""
        slot = self._free_slots.pop()
        self.waiting.remove(sequence)
        self.accounts.running[sequence.account] += 1
        self.running[sequence.id] = self.prefilling[sequence.id] = sequence
        sequence.status, sequence.slot, sequence.blocks = Status.RUNNING, slot, blocks
        sequence.computed, sequence.installed = blocks.cached_tokens, False
        if not sequence.started:
            sequence.planned_s = time.monotonic()
        self.sequences[slot] = sequence
        self.ids[slot], self.account[slot] = sequence.id, sequence.account
        self.length[slot], self.end[slot] = len(sequence.tokens), sequence.end
        self.capacity[slot] = len(blocks) * self._kv.block_size
        self.published[slot] = blocks.published_blocks
        self.ending_step[slot] = -1
        self.decoding[slot], self.reporting[slot] = False, True
        self.logprobs[slot] = sequence.sampling.logprobs

    def preempt(self, sequence: Sequence) -> None:
        """Back to the head of its queue: it keeps its tokens and computes their K/V again later."""
        self._stop_running(sequence)
        sequence.status = Status.WAITING
        self.waiting.push(sequence, first=True)
        self._release_blocks(sequence)
        self._vacate(sequence.slot)

    def finish(self, sequence: Sequence) -> None:
        """Forget a live sequence; its slot and blocks follow when no step in flight needs them."""
        self.accounts.close(sequence.account)
        if sequence.status is Status.RUNNING:
            self._stop_running(sequence)
            sequence.status = Status.FINISHED
            self.reporting[sequence.slot] = False
            self._vacate(sequence.slot)
            return
        self.waiting.remove(sequence)
        sequence.status = Status.FINISHED
        if sequence.slot >= 0:
            self.reporting[sequence.slot] = False

    def settle(self, step: int) -> None:
        """Step `step` has been committed: free what waited for it."""
        self._settled_step = step
        if self._limbo:
            waiting, self._limbo = self._limbo, []
            for slot in waiting:
                self._vacate(slot)

    def check_integrity(self) -> None:
        """Raise AssertionError unless slots, queues, blocks and pool agree."""
        held = [s for s in self.sequences if s is not None]
        busy = {s.slot for s in held}
        assert len(busy) == len(held), "two sequences hold one slot"
        assert sorted([*busy, *self._free_slots]) == list(range(len(self.sequences))), (
            "a slot is lost or twice free"
        )
        assert set(self._limbo) == busy - {s.slot for s in self.running.values()}, "limbo and running overlap"
        for slot, sequence in enumerate(self.sequences):
            assert sequence is None or sequence.slot == slot, "a sequence does not know its slot"
        for sequence in self.running.values():
            self._check_running(sequence)
        assert not any(s.id in self.running for s in self.waiting.values()), "a sequence waits and runs"
        self._check_accounts()
        assert not self.decoding[[slot for slot in range(len(self.sequences)) if slot not in busy]].any()
        self._kv.check_integrity(s.blocks for s in held if s.blocks is not None)

    def _check_accounts(self) -> None:
        arrivals: dict[int, list[int]] = {}
        for sequence in self.live():
            arrivals.setdefault(sequence.account, []).append(sequence.arrival)
        for account, order in arrivals.items():
            assert order == sorted(order), "not first come, first served"
            assert self.accounts.live[account] == len(order), "live sequences miscounted"
        running = np.bincount(
            [s.account for s in self.running.values()], minlength=len(self.accounts.running)
        )
        assert (running == self.accounts.running).all(), "running sequences miscounted"

    def _check_running(self, sequence: Sequence) -> None:
        slot = sequence.slot
        assert sequence.status is Status.RUNNING, f"{sequence}: not running"
        assert sequence.blocks is not None, f"{sequence}: no blocks"
        assert self.ids[slot] == sequence.id, f"{sequence}: row of another"
        assert self.length[slot] <= self.end[slot], f"{sequence}: too long"
        assert self.capacity[slot] == len(sequence.blocks) * self._kv.block_size, f"{sequence}: capacity"
        prefilling = sequence.id in self.prefilling
        assert not (prefilling and self.decoding[slot]), f"{sequence}: prefills and decodes"
        ends = self.ending_step[slot] >= 0
        assert prefilling + bool(self.decoding[slot]) + ends == 1, f"{sequence}: would never run again"

    def _stop_running(self, sequence: Sequence) -> None:
        del self.running[sequence.id]
        self.accounts.running[sequence.account] -= 1
        self.prefilling.pop(sequence.id, None)
        self.decoding[sequence.slot] = False

    def _release_blocks(self, sequence: Sequence) -> None:
        if sequence.blocks is not None:
            self._kv.release(sequence.blocks)
            sequence.blocks = None

    def _vacate(self, slot: int) -> None:
        if self.last_step[slot] > self._settled_step:
            self._limbo.append(slot)
            return
        sequence = self.sequences[slot]
        assert sequence is not None
        if sequence.status is Status.WAITING and sequence.installed:
            sequence.tokens = self._state.tokens[slot, : self.length[slot]].copy()
        self._release_blocks(sequence)
        sequence.slot = -1
        self.sequences[slot] = None
        self.reporting[slot] = False
        self._free_slots.append(slot)
