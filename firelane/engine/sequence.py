"""One request inside the engine, from its arrival to its end."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from firelane.engine.pooling import Pool
from firelane.kv import BlockTable, PrefixChain
from firelane.wire.frames import Sampling

if TYPE_CHECKING:
    from firelane.engine.grammar.constraint import Constraint


class Status(Enum):
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Claim(NamedTuple):
    """Who a sequence works for, as in NewRequest."""

    tenant: str = ""
    weight: float = 1.0
    background: bool = False


class Sequence:
    """State of one request. What changes in every decode step lies in the SequenceTable's row of its slot
    instead.

    tokens: int32, the prompt and all tokens generated before it was last admitted; while the sequence runs,
    the
        executor's `tokens[slot]` is the record. end: the length at which it is finished. computed: leading
        tokens whose K/V is computed or planned. scored: leading prompt positions whose prompt
        log-probability (or hidden state) is planned or reported. pool: where a request for an embedding
        collects it, else None. slot: -1 where it has none. blocks: None where it holds
        none. planned_s: when it first got its slot, by time.monotonic(). account: whose virtual time it
        uses. installed: its slot's row is written, or planned to be. lost: computed tokens that it gave up
        when it was last preempted for another tenant. constraint: the grammar that its text follows, or
        None.
    """

    __slots__ = (
        "account",
        "arrival",
        "blocks",
        "chain",
        "claim",
        "computed",
        "constraint",
        "end",
        "id",
        "installed",
        "lost",
        "planned_s",
        "pool",
        "prompt_len",
        "sampling",
        "scored",
        "slot",
        "started",
        "status",
        "tokens",
    )

    def __init__(
        self,
        request_id: int,
        prompt: NDArray[np.int32],
        *,
        sampling: Sampling,
        end: int,
        chain: PrefixChain,
        claim: Claim,
    ) -> None:
        self.id = request_id
        self.arrival = -1
        self.prompt_len = len(prompt)
        self.tokens = prompt
        self.sampling = sampling
        self.end = end
        self.chain = chain
        self.claim = claim
        self.account = -1
        self.status = Status.WAITING
        self.slot = -1
        self.blocks: BlockTable | None = None
        self.computed = 0
        self.constraint: Constraint | None = None
        self.scored = 0 if sampling.prompt_logprobs >= 0 else self.prompt_len - 1
        self.started = False
        self.installed = False
        self.lost = 0
        self.planned_s = 0.0
        self.pool: Pool | None = None

    @property
    def reusable_tokens(self) -> int:
        """Leading tokens that may come from the prefix cache: a position still to be scored must be
        computed."""
        return len(self.tokens) if self.scored == self.prompt_len - 1 else self.scored

    def __repr__(self) -> str:
        return f"<Sequence {self.id} {self.status.name} slot={self.slot} computed={self.computed}/{self.end}>"
