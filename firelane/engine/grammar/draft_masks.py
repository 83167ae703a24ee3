"""Drafts of sequences that a grammar constrains: the part that the grammar allows, and the masks of the rows
behind drafted tokens."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from firelane.contract import DRAFT_MASKS

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from firelane.engine.grammar.constraint import Constraint
    from firelane.engine.sequences.sequence import Sequence
    from firelane.engine.step.slot_writer import SlotWriter


class AllowedDraft(NamedTuple):
    """tokens: the draft as far as the grammar allows it. rows: for each token, StepInputs.row_mask of the row
    behind it."""

    tokens: list[int]
    rows: list[int]


NO_DRAFT = AllowedDraft([], [])


class DraftMasks:
    """Takes drafted tokens into the matchers of their sequences, ahead of what is drawn, and writes the masks
    behind them. A token with which the text is complete is never drafted: then no row is behind it."""

    def __init__(self, slots: int, writer: SlotWriter) -> None:
        self._slots, self._writer = slots, writer
        self._used = 0

    def begin(self) -> None:
        """A new step is drafted, and none is in flight."""
        self._used = 0

    def forced(self, sequence: Sequence) -> list[int]:
        """Tokens that spell the only text by which the grammar can go on, the way its tokenizer spells it;
        the model may spell it in another way."""
        constraint = sequence.constraint
        if constraint is None or constraint.matcher is None or not constraint.drafts:
            return []
        return constraint.matcher.compute_ff_tokens()

    def allowed(self, sequence: Sequence, run: list[int]) -> AllowedDraft:
        """Only for a sequence whose matcher has all of its tokens."""
        constraint = sequence.constraint
        if constraint is None or constraint.matcher is None or not constraint.drafts:
            return NO_DRAFT
        began_s = time.thread_time()
        draft = AllowedDraft([], [])
        for token in run:
            row = draft.rows[-1] - 1 + self._slots if draft.rows else sequence.slot
            if self._used == DRAFT_MASKS or not self._takes(sequence, constraint, row, token):
                break
            self._used += 1
            draft.tokens.append(token)
            draft.rows.append(self._used)
        constraint.ahead = len(draft.tokens)
        used_s, most_s = time.thread_time() - began_s, constraint.limits.token_cpu_s
        constraint.drafts = used_s <= most_s * (1 + len(draft.tokens))
        return draft

    def _takes(self, sequence: Sequence, constraint: Constraint, row: int, token: int) -> bool:
        """Take the token where the mask `row` allows it and the text may go on behind it."""
        matcher, stops = constraint.matcher, sequence.sampling.stop_token_ids
        assert matcher is not None
        if token in stops or token == constraint.compiled.end or not self._writer.allows(row, token):
            return False
        if not matcher.consume_token(token):
            return False
        if matcher.is_stopped() or self._is_complete(matcher, constraint, stops):
            matcher.rollback(1)
            return False
        return True

    def _is_complete(self, matcher: LLMatcher, constraint: Constraint, stops: list[int]) -> bool:
        row = self._slots + self._used
        self._writer.compute_mask(row, matcher.unsafe_compute_mask_ptr)
        return matcher.is_error() or self._writer.finish_mask(row, constraint.compiled.end, stops)
