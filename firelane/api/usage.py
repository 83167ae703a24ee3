"""Token counts of a request."""

from __future__ import annotations

import msgspec


class CachedByTier(msgspec.Struct, frozen=True, kw_only=True):
    """Cached tokens by the place where their keys and values lay: with the engine, in host memory, on a
    drive, or with another engine."""

    device: int
    host: int
    disk: int
    peer: int


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """cached_tokens_by_tier: a field of Firelane's own, where some came from below the device."""

    cached_tokens: int = 0
    cached_tokens_by_tier: CachedByTier | msgspec.UnsetType = msgspec.UNSET


class CompletionTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """accepted_prediction_tokens: tokens of the answer that had been drafted, from a prediction or otherwise;
    rejected_prediction_tokens: drafted tokens that were wrong."""

    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_tokens: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """All counts are tokens; `completion_tokens` is summed over the choices, a prompt counts once for its n
    choices.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()
