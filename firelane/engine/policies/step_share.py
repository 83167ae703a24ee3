"""The part of a step that is left to low-priority work: background work and over-share tenants.

While only these work, their steps are short, so that an arriving request soon gets its turn; while prompts of
others are due they get what costs those hardly any time. With this, and the arriving request first, the time
to its first token is about that on an empty server, plus half a short step. One tenant alone is never
low-priority, and nothing here applies.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firelane.engine.policies.accounts import BURST_TOKENS, Accounts
from firelane.engine.step.step_time import StepTimeModel

SHORT_STEP = 1.5
"""Length of a step of low-priority work alone, relative to the shortest step."""
WITH_DECODES = 1.25
"""The same, for a step in which background work joins decodes of others."""
WITH_DUE = 1.1
"""The same, for a step in which low-priority work joins short prompts that are due."""
SHARE_WITH_DUE = 16
"""While prompts of others are due, low-priority work gets up to one token for so many of theirs."""
FEW_TOKENS = 7
"""Low-priority tokens of a step that is made short to see how long a short step takes."""


class StepShare:
    """low: mask of low-priority accounts."""

    def __init__(self, accounts: Accounts, times: StepTimeModel, max_tokens: int) -> None:
        self._accounts = accounts
        self._times = times
        self._max_tokens = max_tokens

    def tokens(self, low: NDArray[np.bool_], due: int, decodes: int) -> int:
        """Low-priority tokens of a step in which others want `due` tokens of prompts and `decodes`."""
        if due:
            cheap = self._tokens_within(WITH_DUE) - due - decodes
            return max(0, min(self._max_tokens - decodes - due, max(1, due // SHARE_WITH_DUE, cheap)))
        if not self._times.knows(decodes + FEW_TOKENS):
            return FEW_TOKENS
        if decodes and self._accounts.background[low].all():
            return max(1, self._tokens_within(WITH_DECODES) - decodes)
        return max(1, self._tokens_within(SHORT_STEP))

    def comes_first(self, account: int, low: NDArray[np.bool_]) -> bool:
        """Prompts of this account, which is not low-priority, are not far ahead of over-share tenants."""
        accounts = self._accounts
        rivals = accounts.counter[low & ~accounts.background]
        burst = BURST_TOKENS / accounts.weight[account]
        return not len(rivals) or accounts.counter[account] <= rivals.min() + burst

    def _tokens_within(self, factor: float) -> int:
        return int(min(self._max_tokens, self._times.tokens_within(factor)))
