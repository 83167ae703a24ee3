"""From a NewRequest to a Sequence: what can never be served is refused here, so that no step has to check
it again."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from firelane.contract import MAX_BIAS, MAX_LOGPROBS, MAX_STOP_IDS, StepLimits
from firelane.engine.sequences.pooling import Pool, pooling_sampling
from firelane.engine.sequences.sequence import Sequence, TenantInfo
from firelane.errors import ContextLengthError, RequestError
from firelane.kv import KvCache
from firelane.wire.frames import NewRequest, Sampling

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


def check_generates(request: NewRequest, *, can_generate: bool) -> None:
    """Raises RequestError for a request that needs logits of a model without a head."""
    if not can_generate and request.pooling is None:
        raise RequestError(NO_HEAD)


def make_sequence(request: NewRequest, limits: StepLimits, vocab_size: int, kv: KvCache) -> Sequence:
    """Raises RequestError where the request can never be served. max_tokens is clipped to what the context
    holds."""
    tokens = _tokens(request.prompt, vocab_size)
    prompt_len = _prompt_len(request, len(tokens))
    sampling = pooling_sampling(request.pooling) if request.pooling else request.sampling
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
    sequence.pool = Pool() if request.pooling else None
    sequence.tells_pages = request.tells_pages
    sequence.chunk_tokens = max(0, request.chunk_tokens)
    if request.output_start >= 0:
        sequence.resume(prompt_len)
    return sequence


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
    if len(sampling.logit_bias) > MAX_BIAS:
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
    for token in [*sampling.stop_token_ids, *(token for token, _ in sampling.logit_bias)]:
        if not 0 <= token < vocab_size:
            raise RequestError(f"token id {token} is not in the vocabulary of {vocab_size} tokens")
