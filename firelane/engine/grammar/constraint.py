"""The masks of sequences that a grammar constrains, kept in step with their tokens."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from firelane.backends.contract import SAMPLE, SlotState, StepInputs, StepOutputs
from firelane.wire.frames import FinishReason

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from firelane.engine.grammar.compiler import CompiledGrammar
    from firelane.engine.grammar.limits import GrammarLimits
    from firelane.engine.sequence import Sequence
    from firelane.engine.table import SequenceTable


class Constraint:
    """The grammar of one sequence, and how far its text has come. The matcher is made when the sequence first
    gets a slot, so that a long queue holds none. allowance_s: processor time that is left to it; each token
    brings some and uses some."""

    __slots__ = ("allowance_s", "compiled", "limits", "matcher")

    def __init__(self, compiled: CompiledGrammar, limits: GrammarLimits) -> None:
        self.compiled = compiled
        self.limits = limits
        self.allowance_s = limits.slack_cpu_s
        self.matcher: LLMatcher | None = None


class Constraints:
    """Writes `masks` rows: bit t of a slot's row is set where token t may come next. Where the text may end,
    the request's own stop tokens are allowed, too. Owns no sequence.

    One thread computes all masks: with two, each token took longer than with one, and the threads of the
    backend have the cores.
    """

    def __init__(self, table: SequenceTable, state: SlotState) -> None:
        self._table = table
        self._state = state
        self._row_bytes = state.masks.shape[1] * state.masks.itemsize
        self._slots: set[int] = set()

    @property
    def is_needed(self) -> bool:
        """Some slot was given a mask."""
        return bool(self._slots)

    def install(self, sequence: Sequence) -> None:
        """Write the mask of a sequence that gets a slot, or note that it has none. Only while no step is in
        flight."""
        slot, constraint = sequence.slot, sequence.constraint
        self._state.sampling["masked"][slot] = constraint is not None
        if constraint is None:
            self._slots.discard(slot)
            return
        self._slots.add(slot)
        if constraint.matcher is None:
            constraint.matcher = constraint.compiled.matcher.deep_copy()
            self._state.masks[slot] = constraint.compiled.mask
            self._settle_end(sequence)
        else:
            self._write(sequence, constraint.matcher)

    def advance(self, step: int, inputs: StepInputs, outputs: StepOutputs) -> dict[int, FinishReason]:
        """Take the tokens that step `step` has drawn and write the masks of the next ones. Only after it has
        ended and before the next is submitted. Returns, by slot, what ends by its grammar: "stop" where the
        text is complete, "error" where the matcher gave up."""
        ends: dict[int, FinishReason] = {}
        table, rows = self._table, inputs.num_rows
        slots = inputs.row_slot[:rows]
        wanted = (inputs.row_kind[:rows] == SAMPLE) & table.reporting[slots]
        wanted &= self._state.sampling["masked"][slots] != 0
        for row in np.flatnonzero(wanted).tolist():
            slot, token = int(slots[row]), int(outputs.tokens[row])
            sequence = table.sequences[slot]
            if sequence is not None and token not in sequence.sampling.stop_token_ids:
                began_s = time.thread_time()
                reason = self._consume(sequence, token, is_last=table.ending_step[slot] == step)
                reason = reason or _charge(sequence, time.thread_time() - began_s)
                if reason is not None:
                    ends[slot] = reason
        if not wanted.any():
            self._forget_left()
        return ends

    def _consume(self, sequence: Sequence, token: int, *, is_last: bool) -> FinishReason | None:
        assert sequence.constraint is not None
        matcher = sequence.constraint.matcher
        assert matcher is not None
        if not matcher.consume_token(token):
            return "error"
        if matcher.is_stopped():
            return "stop"
        return None if is_last else self._write(sequence, matcher)

    def _write(self, sequence: Sequence, matcher: LLMatcher) -> FinishReason | None:
        row = self._state.masks.ctypes.data + sequence.slot * self._row_bytes
        matcher.unsafe_compute_mask_ptr(row, self._row_bytes)
        if matcher.is_error():
            return "error"
        return "stop" if self._settle_end(sequence) else None

    def _settle_end(self, sequence: Sequence) -> bool:
        """Where the text may end, allow the stop tokens instead of our own mark of it. True where it may not
        go on."""
        assert sequence.constraint is not None
        mask, end = self._state.masks[sequence.slot], sequence.constraint.compiled.end
        word, bit = end >> 5, 1 << (end & 31)
        if not int(mask[word]) & bit:
            return False
        mask[word] &= np.uint32(0xFFFFFFFF ^ bit)
        complete = not mask.any()
        for token in sequence.sampling.stop_token_ids:
            mask[token >> 5] |= np.uint32(1 << (token & 31))
        return complete

    def _forget_left(self) -> None:
        """Slots whose constrained sequence has gone."""
        gone = [slot for slot in self._slots if self._is_left(slot)]
        self._slots.difference_update(gone)

    def _is_left(self, slot: int) -> bool:
        sequence = self._table.sequences[slot]
        return sequence is None or sequence.constraint is None


def _charge(sequence: Sequence, used_s: float) -> FinishReason | None:
    """A grammar whose tokens are dear, such as one that fixes a very long text, must not hold up the steps of
    all for long."""
    constraint = sequence.constraint
    assert constraint is not None
    left_s = constraint.allowance_s + constraint.limits.token_cpu_s - used_s
    constraint.allowance_s = min(left_s, constraint.limits.slack_cpu_s)
    return "error" if left_s < 0 else None
