"""One request inside the engine, from its arrival to its end."""

from __future__ import annotations

from collections import Counter
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from firelane.engine.sequences.pooling import Pool
from firelane.kv import BlockTables, PrefixChain
from firelane.wire.frames import FinishReason, Sampling

if TYPE_CHECKING:
    from firelane.engine.grammar.constraint import Constraint


PEER = "peer"
"""In place of a tier's name: another engine."""


class Status(Enum):
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class TenantInfo(NamedTuple):
    """The tenant of a sequence and its share, as in NewRequest."""

    name: str = ""
    weight: float = 1.0
    background: bool = False


class Sequence:
    """State of one request. What changes in every decode step lies in the SequenceTable's row of its slot
    instead."""

    __slots__ = (
        "account",
        "arrival",
        "blocks",
        "chain",
        "chunk_tokens",
        "computed",
        "constraint",
        "end",
        "id",
        "is_resumed",
        "pool",
        "preempted_tokens",
        "prompt_len",
        "prompt_logprobs_done",
        "restored",
        "row_written",
        "sampling",
        "scheduled_s",
        "slot",
        "started",
        "status",
        "tells_pages",
        "tenant",
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
        tenant: TenantInfo,
    ) -> None:
        self.id = request_id
        self.arrival = -1
        self.prompt_len = len(prompt)
        self.tokens = prompt
        """int32, the prompt and all tokens generated before it was last admitted; while it runs, the
        executor's tokens[slot] is the record."""
        self.sampling = sampling
        self.end = end
        """The length at which it is finished."""
        self.chain = chain
        self.tenant = tenant
        self.account = -1
        """The account whose virtual time it uses, where tenants share."""
        self.status = Status.WAITING
        self.slot = -1
        self.blocks: BlockTables | None = None
        self.computed = 0
        """Leading tokens of a prefill whose K/V is computed, or is being computed by a step in flight."""
        self.constraint: Constraint | None = None
        self.prompt_logprobs_done = 0 if sampling.prompt_logprobs >= 0 else self.prompt_len - 1
        """Leading prompt positions whose log-probability (or hidden state) is reported or in flight."""
        self.is_resumed = False
        """Another engine has begun it."""
        self.tells_pages, self.chunk_tokens = False, 0
        """Fields of NewRequest with the same meaning."""
        self.started = False
        self.row_written = False
        """A step in flight, or an earlier one, has seen the row of its slot."""
        self.preempted_tokens = 0
        """Computed tokens that it gave up when it was last preempted."""
        self.scheduled_s = 0.0
        """When it first got its slot, by time.monotonic()."""
        self.pool: Pool | None = None
        """The place where a request for an embedding collects it."""
        self.restored: dict[bytes, str] = {}
        """Names of its blocks that were brought here for it, and from where: a tier, or another engine."""

    def resume(self, output_start: int) -> None:
        """Tokens from `output_start` on are output already. Whoever drew them has reported the prompt's
        log-probabilities."""
        self.is_resumed = True
        self.prompt_len = output_start
        self.prompt_logprobs_done = output_start - 1

    @property
    def outcome(self) -> FinishReason | None:
        """The reason why there is nothing left to compute; None where there is."""
        if self.constraint is not None and self.constraint.outcome is not None:
            return self.constraint.outcome
        complete = len(self.tokens) >= self.end and self.prompt_logprobs_done == self.prompt_len - 1
        return "length" if complete else None

    @property
    def failure(self) -> str:
        """The fault of the request itself, where it ends in an error."""
        return "" if self.constraint is None else self.constraint.failure

    def restored_blocks(self, num_blocks: int) -> Counter[str]:
        """Counts of its first `num_blocks` blocks by where they came from."""
        if not self.restored:
            return Counter()
        names = self.chain.names(self.tokens, num_blocks)[:num_blocks]
        return Counter(self.restored[name] for name in names if name in self.restored)

    @property
    def reusable_tokens(self) -> int:
        """Leading tokens that may come from the prefix cache: a position still to be scored must be
        computed."""
        done = self.prompt_logprobs_done
        return len(self.tokens) if done == self.prompt_len - 1 else done

    def __repr__(self) -> str:
        return f"<Sequence {self.id} {self.status.name} slot={self.slot} computed={self.computed}/{self.end}>"


def arrival(sequence: Sequence) -> int:
    return sequence.arrival
