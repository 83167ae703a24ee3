"""The masks of sequences that a grammar constrains, kept in step with their tokens."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from firelane.contract import SAMPLE, StepInputs, StepOutputs
from firelane.engine.grammar.constraint import Constraint
from firelane.engine.step.drafts import Drafts
from firelane.wire.frames import FinishReason

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from firelane.engine.grammar.compiler import CompiledGrammar
    from firelane.engine.grammar.limits import GrammarLimits
    from firelane.engine.sequences.sequence import Sequence
    from firelane.engine.sequences.table import SequenceTable
    from firelane.engine.step.slot_writer import SlotWriter


log = logging.getLogger(__name__)


def constrain(sequence: Sequence, compiled: CompiledGrammar, limits: GrammarLimits) -> None:
    """Give a new sequence its constraint."""
    sequence.constraint = Constraint(compiled, limits)
    output = sequence.tokens[sequence.prompt_len :].tolist()
    if output:
        sequence.constraint.replay(output)


class GrammarMasks:
    """Writes `masks` rows: bit t of a slot's row is set where token t may come next. Where the text may end,
    the request's own stop tokens are allowed, too. Owns no sequence.

    One thread computes all masks: with two, each token took longer than with one, and the threads of the
    backend have the cores.
    """

    def __init__(self, table: SequenceTable, writer: SlotWriter) -> None:
        self._table = table
        self._writer = writer
        self._slots: set[int] = set()

    @property
    def is_needed(self) -> bool:
        """Some slot was given a mask."""
        return bool(self._slots)

    def write_row(self, sequence: Sequence) -> None:
        """Write the mask of a sequence that gets a slot. Only while no step in flight has a chunk of it."""
        slot, constraint = sequence.slot, sequence.constraint
        if constraint is None:
            self._slots.discard(slot)
            return
        self._slots.add(slot)
        if constraint.matcher is None:
            constraint.matcher = constraint.compiled.matcher.deep_copy()
            self._writer.write_mask(slot, constraint.compiled.mask)
            self._finish_mask(sequence)
        else:
            self._write(sequence, constraint.matcher)

    def advance(
        self, inputs: StepInputs, outputs: StepOutputs, drafts: Drafts | None = None
    ) -> dict[int, FinishReason]:
        """Take the tokens that a step has drawn and write the masks of the next ones. Only after it has
        ended, and before it is committed and the next is submitted. Returns, by slot, what ends by its
        grammar: "stop" where the text is complete, "error" where the matcher gave up."""
        ends: dict[int, FinishReason] = {}
        if not self._slots:
            return ends
        table, rows = self._table, inputs.num_rows
        slots = inputs.row_slot[:rows]
        wanted = (inputs.row_kind[:rows] == SAMPLE) & table.wants_output[slots]
        wanted &= np.isin(slots, list(self._slots))
        found = np.flatnonzero(wanted)
        for row in (found if drafts is None else self._last_drawn(found, slots, outputs, drafts)).tolist():
            slot, token = int(slots[row]), int(outputs.tokens[row])
            sequence = table.sequences[slot]
            if sequence is not None and sequence.constraint and token not in sequence.sampling.stop_token_ids:
                began_s = time.thread_time()
                reason = self._consume(sequence, token, is_last=inputs.row_position[row] + 2 >= sequence.end)
                reason = reason or _charge(sequence, time.thread_time() - began_s)
                if reason is not None:
                    ends[slot] = reason
        if not wanted.any():
            self._forget_left()
        return ends

    def _last_drawn(
        self, rows: NDArray[np.int64], slots: NDArray[np.int32], outputs: StepOutputs, drafts: Drafts
    ) -> NDArray[np.int64]:
        """The row of each slot that draws its last token, which is the first that is not as drafted. Drafted
        tokens behind it are taken back."""
        won = dict(zip(drafts.first_rows.tolist(), drafts.won(outputs.tokens).tolist(), strict=True))
        last: list[int] = []
        for row in rows.tolist():
            if row < drafts.num_rows and row not in won:
                continue
            accepted = won.get(row, 1) - 1
            sequence = self._table.at(int(slots[row]))
            if sequence.constraint is not None:
                sequence.constraint.take_back(accepted)
            last.append(row + accepted)
        return np.array(last, np.int64)

    def _consume(self, sequence: Sequence, token: int, *, is_last: bool) -> FinishReason | None:
        assert sequence.constraint is not None
        matcher = sequence.constraint.matcher
        assert matcher is not None
        if not matcher.consume_token(token):
            return sequence.constraint.fail(matcher)
        if matcher.is_stopped():
            return "stop"
        return None if is_last else self._write(sequence, matcher)

    def _write(self, sequence: Sequence, matcher: LLMatcher) -> FinishReason | None:
        self._writer.compute_mask(sequence.slot, matcher.unsafe_compute_mask_ptr)
        if matcher.is_error():
            assert sequence.constraint is not None
            return sequence.constraint.fail(matcher)
        return "stop" if self._finish_mask(sequence) else None

    def _finish_mask(self, sequence: Sequence) -> bool:
        """True where the text may not go on."""
        assert sequence.constraint is not None
        end, stops = sequence.constraint.compiled.end, sequence.sampling.stop_token_ids
        return self._writer.finish_mask(sequence.slot, end, stops)

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
    if left_s >= 0:
        return None
    constraint.give_up("the grammar takes too much time for each token: simplify it")
    return "error"
