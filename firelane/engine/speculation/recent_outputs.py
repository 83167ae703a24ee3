"""An engine's late answers, by tenant and salt: answers to the same tenant often repeat each other."""

from __future__ import annotations

from collections import OrderedDict

from firelane.engine.sequences.sequence import Sequence
from firelane.engine.speculation.ngram_index import SEPARATOR, NgramIndex

MOST_TOKENS = 8192
"""Tokens of answers that are kept of one tenant and salt; of more, the later half is."""
MOST_OWNERS = 64
"""Tenants and salts of which answers are kept, those that answered last."""
Owner = tuple[bytes, bytes]
"""The tenant's id, and the root of its salt's page names: nobody else's drafts come from its answers."""


class RecentOutputs:
    """Indices of the latest outputs of each owner."""

    def __init__(self) -> None:
        self._indices: OrderedDict[Owner, NgramIndex] = OrderedDict()

    def of(self, sequence: Sequence) -> NgramIndex | None:
        """The index of the sequence's owner; None where it has answered nothing yet."""
        return self._indices.get(_owner(sequence))

    def add(self, sequence: Sequence, output: list[int]) -> None:
        """The sequence has ended, or given up its place, with this output."""
        if not output:
            return
        owner = _owner(sequence)
        index = self._indices.pop(owner, None) or NgramIndex()
        if len(index.tokens) + len(output) > MOST_TOKENS:
            kept = index.tokens[-MOST_TOKENS // 2 :]
            index = NgramIndex()
            index.extend(kept)
        index.extend([*output[-MOST_TOKENS // 2 :], SEPARATOR])
        self._indices[owner] = index
        while len(self._indices) > MOST_OWNERS:
            self._indices.popitem(last=False)

    def forget(self, tenant: bytes) -> None:
        """Nothing of this tenant is kept; tenant: its id, as in PrefixChain."""
        for owner in [owner for owner in self._indices if owner[0] == tenant]:
            del self._indices[owner]


def _owner(sequence: Sequence) -> Owner:
    return sequence.chain.tenant, sequence.chain.root
