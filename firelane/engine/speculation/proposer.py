"""The interface of whatever drafts tokens."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Several
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from firelane.contract import GivenBack
from firelane.engine.sequences.sequence import Sequence
from firelane.engine.speculation.draft_length import DraftLength


class Asked(NamedTuple):
    """A sequence whose next tokens are to be drafted.

    tokens: int32, all that are known, of prompt and output, valid during the call; most: longest draft.
    length: what became of its drafts; row_price: as DraftLength.choose has it; tokens_per_s: tokens that the
    engine could draw in a second without drafts, 0 where not known.
    """

    slot: int
    sequence: Sequence
    tokens: NDArray[np.int32]
    most: int
    length: DraftLength | None = None
    row_price: float = 0.0
    tokens_per_s: float = 0.0

    def worth(self, confidence: float, token_s: float) -> int:
        """Tokens to draft, where each takes `token_s` seconds before its row is computed. confidence: as in
        Proposal."""
        if self.length is None:
            return self.most
        return min(self.most, self.length.choose(confidence, self.row_price + token_s * self.tokens_per_s))


class Proposal(NamedTuple):
    """Tokens that may come next. confidence: the chance, from 0 to 1, that the first one is drawn, as far as
    the proposer knows before it was tried. seconds: that drafting has taken, 0 where next to none."""

    tokens: list[int]
    confidence: float
    seconds: float = 0.0


NO_PROPOSAL = Proposal([], 0.0)


class Proposer(Protocol):
    """Drafts tokens of the sequences of one engine. It may keep what it has made of a sequence's tokens, by
    slot: tokens of a sequence only grow. A slot that gets another sequence starts anew."""

    def propose(self, asked: Several[Asked]) -> list[Proposal]:
        """A proposal for each, in their order; NO_PROPOSAL where it has no idea."""
        ...

    def forget(self, tenant: bytes) -> None:
        """Nothing of this tenant's texts is kept, and nothing runs. tenant: its id, as in PrefixChain."""
        ...

    def standby(self) -> GivenBack:
        """Give back memory, as Executor.standby does; nothing is asked before `wake`."""
        ...

    def wake(self) -> None:
        """Have it again, as Executor.wake does."""
        ...


class ComputedRows(NamedTuple):
    """Rows that the model has computed of one sequence, each of a verified token, from position `start` on.
    features: float32 [rows, width], what the model tells of them, valid during the call. begins: they are the
    first ones since the sequence got its slot; later runs may begin with rows that were there already."""

    slot: int
    sequence: Sequence
    start: int
    features: NDArray[np.float32]
    begins: bool = False


@runtime_checkable
class FeatureReader(Protocol):
    """A Proposer of this kind goes on from what the model has computed."""

    def note_rows(self, computed: Iterable[ComputedRows]) -> None:
        """A step has ended, which has computed these rows. The tokens behind them are in the slots' state."""
        ...
