"""Pages that a tier stores: all, or those that were asked for again."""

from __future__ import annotations

from collections import OrderedDict

from firelane.kv.tiers.slots import PageKey


class TierAdmission:
    """Every page is stored when it has been computed."""

    def admits(self, key: PageKey, *, is_reused: bool) -> bool:
        """Whether to store this page, which has been computed, or (is_reused) found by a prompt."""
        del key
        return not is_reused


class AdmitReused(TierAdmission):
    """A page at its second use: found by a prompt, or computed once more within the last `memory` pages."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._computed: OrderedDict[PageKey, None] = OrderedDict()

    def admits(self, key: PageKey, *, is_reused: bool) -> bool:
        if is_reused or self._computed.pop(key, self) is None:
            self._computed.pop(key, None)
            return True
        self._computed[key] = None
        if len(self._computed) > self._memory:
            self._computed.popitem(last=False)
        return False
