"""One request inside the engine, from its arrival to its end. What can never be served is refused when it is
made of a NewRequest, so that no step has to check it again.
"""

from __future__ import annotations

import math
from collections import Counter
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from firelane.contract import MAX_BIAS, MAX_LOGPROBS, MAX_STOP_IDS, NO_ADAPTER, StepLimits
from firelane.engine.sequences.urgency import PLAIN
from firelane.errors import ContextLengthError, RequestError
from firelane.kv import BlockTables, KvCache, PrefixChain
from firelane.request_limits import MOST_DRAFTED
from firelane.wire.frames import FinishReason, NewRequest, Pooling, Sampling


def pooling_sampling(pooling: Pooling) -> Sampling:
    """Sampling values that make the scheduler plan an output row wherever `pooling` looks."""
    return Sampling(temperature=0.0, max_tokens=1, prompt_logprobs=0 if pooling == "mean" else -1)


class EmbeddingPool:
    """The hidden states of a request that wants an embedding instead of tokens: the mean of those that it is
    given, one position after the other; of all positions, or of the last one alone, its own mean.

    Such a request runs through the engine as one that draws a single token: the scheduler knows no other. Its
    output rows, the last one included, are EMBED rows. "mean" needs one at each position of the prompt: those
    are planned as prompt log-probabilities are.

    The sum is float64 and grows position by position, so its bits do not depend on the prompt's chunks.
    """

    __slots__ = ("_count", "_sum")

    def __init__(self) -> None:
        self._sum: NDArray[np.float64] | None = None
        self._count = 0

    def add(self, hidden: NDArray[np.float32]) -> None:
        """hidden: [width], of the next position; copied."""
        if self._sum is None:
            self._sum = hidden.astype(np.float64)
        else:
            self._sum += hidden
        self._count += 1

    def values(self) -> bytes:
        """The pooled state: little-endian float32 [width]."""
        assert self._sum is not None, "nothing to pool"
        return (self._sum / self._count).astype("<f4").tobytes()


if TYPE_CHECKING:
    from firelane.engine.grammar.constraint import Constraint
    from firelane.engine.sequences.sequence_images import SequenceImages


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
        "adapter",
        "arrival",
        "arrived_s",
        "blocks",
        "chain",
        "chunk_tokens",
        "computed",
        "constraint",
        "end",
        "id",
        "images",
        "is_resumed",
        "likely_cached",
        "most_drafted",
        "pool",
        "prediction",
        "preempted_tokens",
        "preemptions",
        "prompt_len",
        "prompt_logprobs_done",
        "rejected_drafts",
        "restored",
        "row_written",
        "sampling",
        "scheduled_s",
        "second_text",
        "slot",
        "started",
        "status",
        "tells_pages",
        "tenant",
        "tokens",
        "urgency",
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
        self.id, self.arrival = request_id, -1
        self.prompt_len = len(prompt)
        self.tokens = prompt
        """int32, the prompt and all tokens generated before it was last admitted; while it runs, the
        executor's tokens[slot] is the record."""
        self.sampling = sampling
        self.end = end
        """The length at which it is finished."""
        self.chain = chain
        self.tenant = tenant
        self.adapter = NO_ADAPTER  # its place in the executor's memory
        self.account = -1
        """The account whose virtual time it uses, where tenants share."""
        self.status = Status.WAITING
        self.slot = -1
        self.blocks: BlockTables | None = None
        self.computed = 0
        """Leading tokens of a prefill whose K/V is computed, or is being computed by a step in flight."""
        self.constraint: Constraint | None = None
        self.images: SequenceImages | None = None
        self.prompt_logprobs_done = 0 if sampling.prompt_logprobs >= 0 else self.prompt_len - 1
        """Leading prompt positions whose log-probability (or hidden state) is reported or in flight."""
        self.is_resumed = False
        """Another engine has begun it."""
        self.tells_pages, self.chunk_tokens = False, 0
        """Fields of NewRequest with the same meaning."""
        self.most_drafted = MOST_DRAFTED
        """Longest draft of its next tokens; 0: none."""
        self.prediction: NDArray[np.int32] | None = None
        """Tokens of the answer as its client expects it."""
        self.rejected_drafts = 0
        """Drafted tokens that were not the ones drawn."""
        self.started = False
        self.row_written = False
        """A step in flight, or an earlier one, has seen the row of its slot."""
        self.preempted_tokens = 0  # computed ones that it gave up when it was last preempted
        self.preemptions = 0
        """Number of times that it was preempted."""
        self.second_text = 0  # as in NewRequest
        self.urgency = PLAIN
        self.likely_cached = -1
        """Tokens that it found in the prefix cache when it came, where it has a deadline."""
        self.arrived_s = 0.0
        """Its arrival by the clock of the policy, where that has one."""
        self.scheduled_s = 0.0
        """When it first got its slot, by time.monotonic()."""
        self.pool: EmbeddingPool | None = None
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


FLOATS = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, math.inf),
    "presence_penalty": (-math.inf, math.inf),
    "frequency_penalty": (-math.inf, math.inf),
}
"""Lowest and highest value of each."""
WEIGHTS = (0.001, 1000.0)
"""Smallest and largest share of a tenant relative to one of weight 1."""
NO_HEAD = (
    "this model cannot generate text: its checkpoint has no head (lm_head.weight). Ask it for embeddings "
    "(/v1/embeddings, /api/embed, LLM.embed), or serve a checkpoint that has one"
)
ENCODER = (
    "this model is an encoder: it makes vectors or scores of texts (/v1/embeddings, /v1/rerank) and cannot "
    "generate text"
)


def check_generates(request: NewRequest, *, can_generate: bool, is_encoder: bool = False) -> None:
    """Raises RequestError for a request that needs logits of a model without a head."""
    if not can_generate and request.pooling is None:
        raise RequestError(ENCODER if is_encoder else NO_HEAD)


def make_sequence(request: NewRequest, limits: StepLimits, vocab_size: int, kv: KvCache) -> Sequence:
    """Raises RequestError where the request can never be served. max_tokens is clipped to what the context
    holds."""
    tokens = _tokens(request.prompt, vocab_size)
    prompt_len = _prompt_len(request, len(tokens))
    pooling: Pooling | None = "last" if limits.whole_prompts and request.pooling else request.pooling
    sampling = pooling_sampling(pooling) if pooling else request.sampling
    _check_sampling(sampling, vocab_size)
    capacity = kv.max_tokens
    outputs = 0 if request.pooling else min(sampling.max_tokens, 1)
    if prompt_len + outputs > limits.max_model_len:
        raise ContextLengthError(
            f"the prompt has {prompt_len} tokens: with its output it exceeds the model's context "
            f"of {limits.max_model_len} tokens"
        )
    if prompt_len > capacity:
        raise ContextLengthError(
            f"the prompt has {prompt_len} tokens: the KV cache has room for {capacity}; give it more memory"
        )
    # The last token of a sequence is never computed, so it needs no room in the cache; that of an embedding
    # never exists.
    end = min(prompt_len + sampling.max_tokens, limits.max_model_len, capacity + 1)
    sequence = Sequence(
        request.id,
        tokens,
        sampling=sampling,
        end=prompt_len + 1 if request.pooling else end,
        chain=kv.chain(request.salt, request.tenant),
        tenant=_tenant(request),
    )
    sequence.pool = EmbeddingPool() if request.pooling else None
    sequence.second_text = _second_text(request, len(tokens))
    sequence.tells_pages = request.tells_pages
    sequence.chunk_tokens = max(0, request.chunk_tokens)
    if request.most_drafted >= 0:
        sequence.most_drafted = min(request.most_drafted, MOST_DRAFTED)
    if request.prediction:
        sequence.prediction = _tokens(request.prediction, vocab_size)
    if request.output_start >= 0:
        sequence.resume(prompt_len)
    return sequence


def _second_text(request: NewRequest, tokens: int) -> int:
    if not 0 <= request.second_text <= tokens:
        raise RequestError(f"second_text is {request.second_text}: the prompt has {tokens} tokens")
    return request.second_text


def _prompt_len(request: NewRequest, tokens: int) -> int:
    """The prompt's part of the tokens; the rest is output that another engine has drawn."""
    if request.output_start < 0:
        return tokens
    if not 0 < request.output_start <= tokens or request.pooling:
        raise RequestError(
            f"output_start is {request.output_start}: of {tokens} tokens, 1 to {tokens} can be the prompt, "
            "and a request that is pooled has no output"
        )
    return request.output_start


def _tenant(request: NewRequest) -> TenantInfo:
    if not WEIGHTS[0] <= request.weight <= WEIGHTS[1]:
        raise RequestError(f"weight is {request.weight}: {WEIGHTS[0]:g} to {WEIGHTS[1]:g} are taken")
    return TenantInfo(request.tenant, request.weight, request.background)


def _tokens(data: bytes, vocab_size: int) -> NDArray[np.int32]:
    if not data or len(data) % 4:
        raise RequestError(f"the prompt has {len(data)} bytes: it must be one or more int32 token ids")
    tokens = np.frombuffer(data, np.dtype("<i4")).astype(np.int32)
    if tokens.view(np.uint32).max() >= vocab_size:  # an id below 0 is a large one here
        bad = tokens[(tokens < 0) | (tokens >= vocab_size)][0]
        raise RequestError(f"token id {bad} is not in the vocabulary of {vocab_size} tokens")
    return tokens


def _check_sampling(sampling: Sampling, vocab_size: int) -> None:
    for name, (lowest, highest) in FLOATS.items():
        value = getattr(sampling, name)
        if not (math.isfinite(value) and lowest <= value <= highest):
            spread = f" from {lowest:g} to {highest:g}" if lowest > -math.inf else ""
            raise RequestError(f"{name} is {value}: it must be a finite number{spread}", param=name)
    _check_reported(sampling)
    if len(sampling.logit_bias) + len(sampling.logprob_token_ids) > MAX_BIAS:
        raise RequestError(f"logit_bias has {len(sampling.logit_bias)} entries: at most {MAX_BIAS} are taken")
    if len(sampling.stop_token_ids) > MAX_STOP_IDS:
        raise RequestError(f"{len(sampling.stop_token_ids)} stop token ids: at most {MAX_STOP_IDS} are taken")
    for name, top, bottom in (
        ("logprobs", MAX_LOGPROBS, -1),
        ("prompt_logprobs", MAX_LOGPROBS, -1),
        ("max_tokens", 2**31 - 1, 0),
        ("min_tokens", 2**30, 0),
        ("top_k", 2**31 - 1, 0),
    ):
        if not bottom <= getattr(sampling, name) <= top:
            raise RequestError(
                f"{name} is {getattr(sampling, name)}: {bottom} to {top} are taken", param=name
            )
    biased = (token for token, _ in sampling.logit_bias)
    for token in [*sampling.stop_token_ids, *sampling.logprob_token_ids, *biased]:
        if not 0 <= token < vocab_size:
            raise RequestError(f"token id {token} is not in the vocabulary of {vocab_size} tokens")


def _check_reported(sampling: Sampling) -> None:
    ids = sampling.logprob_token_ids
    if len(ids) > MAX_LOGPROBS:
        raise RequestError(
            f"logprob_token_ids has {len(ids)} tokens: at most {MAX_LOGPROBS} are taken",
            param="logprob_token_ids",
        )
    if ids and (sampling.logprobs != 0 or sampling.prompt_logprobs != -1):
        raise RequestError(
            "logprob_token_ids stand in place of the best alternatives: logprobs must be 0, and "
            "prompt_logprobs -1",
            param="logprob_token_ids",
        )
