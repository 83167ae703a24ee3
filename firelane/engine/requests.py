"""From a NewRequest to a Sequence: what can never be served is refused here, so that no step has to check
it again."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from firelane.backends.contract import MAX_BIAS, MAX_LOGPROBS, MAX_STOP_IDS, StepLimits
from firelane.engine.pooling import Pool, pooling_sampling
from firelane.engine.sequence import Claim, Sequence
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


def make_sequence(request: NewRequest, limits: StepLimits, vocab_size: int, kv: KvCache) -> Sequence:
    """Raises RequestError where the request can never be served. max_tokens is clipped to what the context
    holds."""
    prompt = _prompt(request.prompt, vocab_size)
    sampling = pooling_sampling(request.pooling) if request.pooling else request.sampling
    _check_sampling(sampling, vocab_size)
    capacity = limits.num_blocks * limits.block_size
    outputs = 0 if request.pooling else min(sampling.max_tokens, 1)
    if len(prompt) + outputs > limits.max_model_len:
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens: with its output it exceeds the model's context "
            f"of {limits.max_model_len} tokens"
        )
    if len(prompt) > capacity:
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens: the KV cache has room for {capacity}; give it more memory"
        )
    # The last token of a sequence is never computed, so it needs no room in the cache; that of an embedding
    # never exists.
    end = min(len(prompt) + sampling.max_tokens, limits.max_model_len, capacity + 1)
    sequence = Sequence(
        request.id,
        prompt,
        sampling=sampling,
        end=len(prompt) + 1 if request.pooling else end,
        chain=kv.chain(request.salt),
        claim=_claim(request),
    )
    sequence.pool = Pool() if request.pooling else None
    return sequence


def _claim(request: NewRequest) -> Claim:
    if not WEIGHTS[0] <= request.weight <= WEIGHTS[1]:
        raise RequestError(f"weight is {request.weight}: {WEIGHTS[0]:g} to {WEIGHTS[1]:g} are taken")
    return Claim(request.tenant, request.weight, request.background)


def _prompt(data: bytes, vocab_size: int) -> NDArray[np.int32]:
    if not data or len(data) % 4:
        raise RequestError(f"the prompt has {len(data)} bytes: it must be one or more int32 token ids")
    prompt = np.frombuffer(data, np.dtype("<i4")).astype(np.int32)
    lowest, highest = int(prompt.min()), int(prompt.max())
    if lowest < 0 or highest >= vocab_size:
        bad = lowest if lowest < 0 else highest
        raise RequestError(f"token id {bad} is not in the vocabulary of {vocab_size} tokens")
    return prompt


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
