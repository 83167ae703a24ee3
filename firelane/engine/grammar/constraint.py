"""The grammar of one sequence, and how far its text has come."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from firelane.engine.grammar.compiler import CompiledGrammar
from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.source import one_line
from firelane.wire.frames import FinishReason

if TYPE_CHECKING:
    from llguidance import LLMatcher

log = logging.getLogger(__name__)


class Constraint:
    """The grammar of one sequence, and how far its text has come. The matcher is made when the sequence first
    gets a slot, so that a long queue holds none. allowance_s: processor time that is left to it; each token
    brings some and uses some. outcome: how a text ends that was resumed at its end. failure: why the matcher
    gave up. ahead: drafted tokens that the matcher has taken and the model has not drawn yet. drafts: whether
    its tokens may be drafted, as masks are cheap enough."""

    __slots__ = ("ahead", "allowance_s", "compiled", "drafts", "failure", "limits", "matcher", "outcome")

    def __init__(self, compiled: CompiledGrammar, limits: GrammarLimits) -> None:
        self.compiled = compiled
        self.limits = limits
        self.allowance_s = limits.slack_cpu_s
        self.matcher: LLMatcher | None = None
        self.outcome: FinishReason | None = None
        self.failure = ""
        self.ahead, self.drafts = 0, True

    def fail(self, matcher: LLMatcher) -> FinishReason:
        """The matcher has given up. Its copies have parts in common: none of them is used again."""
        if matcher.is_error():
            self.compiled.is_spent = True
            self.give_up(
                f"the grammar cannot be used any further: {one_line(matcher.get_error())}; simplify it"
            )
        return "error"

    def take_back(self, accepted: int) -> None:
        """The model has drawn the first `accepted` of the drafted tokens that the matcher has taken."""
        if self.ahead > accepted and self.matcher is not None:
            self.matcher.rollback(self.ahead - accepted)
        self.ahead = 0

    def give_up(self, reason: str) -> None:
        self.failure = reason
        log.warning("grammar_failed reason=%r", reason)

    def replay(self, output: list[int]) -> None:
        """Take the tokens of a request that another engine began. That engine may have died between the last
        token of a complete text and the frame that says so."""
        matcher = self.matcher = self.compiled.matcher.deep_copy()
        consumed = matcher.consume_tokens(output)
        if consumed and matcher.is_stopped():
            self.outcome = "stop"
            return
        mask = np.zeros_like(self.compiled.mask)
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if not consumed or matcher.is_error():
            self.outcome = self.fail(matcher)
            return
        word, bit = self.compiled.end >> 5, 1 << (self.compiled.end & 31)
        may_end = bool(int(mask[word]) & bit)
        mask[word] &= np.uint32(0xFFFFFFFF ^ bit)
        self.outcome = "stop" if may_end and not mask.any() else None
