"""How much of a step goes to whom, where several tenants, or background work, want something.

The *crowd* is background work and the tenants above their share. While only the crowd works its steps are
short, so that a newcomer soon gets its turn; while prompts of others are due it gets what costs those hardly
any time. With this, and the newcomer first, the time to its first token is about that on an empty server,
plus half a short step. One tenant alone is no crowd, and nothing here applies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firelane.engine.fairness import BURST_TOKENS
from firelane.engine.pace import Pace
from firelane.engine.table import SequenceTable

SHORT_STEP = 1.5
"""Length of a step of the crowd alone, relative to the shortest step."""
WITH_DECODES = 1.25
"""The same, for a step in which background work joins decodes of others."""
WITH_DUE = 1.1
"""The same, for a step in which the crowd joins short prompts that are due."""
SHARE_WITH_DUE = 16
"""While prompts of others are due, the crowd gets up to one token for so many of theirs."""

FEW_TOKENS = 7
"""The crowd's part of a step that is made short to see how long a short step takes."""


@dataclass(frozen=True, slots=True)
class Share:
    """crowd: by account. tokens: of the crowd in this step."""

    crowd: NDArray[np.bool_]
    tokens: int


class StepSharing:
    def __init__(self, table: SequenceTable, pace: Pace, max_tokens: int) -> None:
        self._table = table
        self._pace = pace
        self._max_tokens = max_tokens

    def crowd(self) -> NDArray[np.bool_] | None:
        """By account; None where there is nothing to share."""
        accounts = self._table.accounts
        if not accounts.is_shared:
            return None
        accounts.expire()
        crowd = accounts.crowd()
        return crowd if crowd.any() else None

    def share(self, crowd: NDArray[np.bool_]) -> Share:
        """To be called when all who come before the crowd and can have a slot have it."""
        table = self._table
        decodes = int(np.count_nonzero(table.decoding & ~crowd[table.account]))
        due = sum(
            len(s.tokens) - s.computed
            for s in table.prefilling.values()
            if not crowd[s.account] and self.comes_first(s.account, crowd)
        )
        return Share(crowd, self.crowd_tokens(crowd, due, decodes))

    def crowd_tokens(self, crowd: NDArray[np.bool_], due: int, decodes: int) -> int:
        """The crowd's part of a step in which others want `due` tokens of prompts and `decodes`."""
        if due:
            cheap = self._tokens_within(WITH_DUE) - due - decodes
            return max(0, min(self._max_tokens - decodes - due, max(1, due // SHARE_WITH_DUE, cheap)))
        if not self._pace.knows(decodes + FEW_TOKENS):
            return FEW_TOKENS
        if decodes and self._table.accounts.background[crowd].all():
            return max(1, self._tokens_within(WITH_DECODES) - decodes)
        return max(1, self._tokens_within(SHORT_STEP))

    def _tokens_within(self, factor: float) -> int:
        return int(min(self._max_tokens, self._pace.tokens_within(factor)))

    def comes_first(self, account: int, crowd: NDArray[np.bool_]) -> bool:
        """Prompts of this account, not of the crowd, are not far ahead of the crowd's tenants."""
        accounts = self._table.accounts
        rivals = accounts.counter[crowd & ~accounts.background]
        burst = BURST_TOKENS / accounts.weight[account]
        return not len(rivals) or accounts.counter[account] <= rivals.min() + burst

    def in_crowd(self, crowd: NDArray[np.bool_], slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        return crowd[self._table.account[slots]]

    def choose(self, slots: NDArray[np.int64], share: Share) -> NDArray[np.int64]:
        """Of these slots that could decode, those that do: the crowd takes turns, background work last."""
        table = self._table
        crowded = self.in_crowd(share.crowd, slots)
        crowd = slots[crowded]
        if len(crowd) <= share.tokens:
            return slots
        background = table.accounts.background[table.account[crowd]]
        turns = np.lexsort((table.last_step[crowd], background))[: share.tokens]
        return np.sort(np.concatenate([slots[~crowded], crowd[turns]]))
