"""Answers of the paths that are llama-server's. Times are in milliseconds."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from firelane.api.usage import Usage
from firelane.telemetry.traces import RequestTimes

StopType = Literal["none", "eos", "limit", "word"]


class NativeLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """bytes: of the token, which may be a part of a character."""

    id: int
    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[NativeLogprob] | UnsetType = UNSET


class NativeTimings(msgspec.Struct, frozen=True, kw_only=True):
    """cache_n: tokens of the prompt that were computed before; prompt_n: the others."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class GenerationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Values that hold for an answer, those that nobody has named among them."""

    n_ctx: int
    model: str
    n_predict: int
    max_tokens: int
    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    stop: list[str]
    ignore_eos: bool
    stream: bool
    n_probs: int
    logit_bias: list[list[float]]
    grammar: str


class NativePiece(msgspec.Struct, kw_only=True):
    """A piece of a stream."""

    index: int = 0
    content: str
    tokens: list[int]
    stop: Literal[False] = False
    id_slot: int = 0
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: list[NativeLogprob] | UnsetType = UNSET


class NativeAnswer(msgspec.Struct, kw_only=True):
    """The whole answer, or the end of a stream, whose content is empty. prompt: the text that the model has
    read, with its special tokens. truncated: the prompt did not fit, and was cut.
    """

    index: int = 0
    content: str
    tokens: list[int]
    id_slot: int = 0
    stop: Literal[True] = True
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: GenerationSettings
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: StopType
    stopping_word: str
    tokens_cached: int
    timings: NativeTimings
    completion_probabilities: list[NativeLogprob] | UnsetType = UNSET


class SlotReport(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the engine's batch."""

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool


class DefaultSettings(msgspec.Struct, frozen=True, kw_only=True):
    n_ctx: int
    params: dict[str, Any]


class PropsReport(msgspec.Struct, frozen=True, kw_only=True):
    """model_path: the served name, not a place on the server's drive."""

    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_path: str
    modalities: dict[str, bool]
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool


class AppliedTemplate(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str


def timings_of(usage: Usage, times: RequestTimes) -> NativeTimings:
    cached = usage.prompt_tokens_details.cached_tokens
    computed, predicted = usage.prompt_tokens - cached, usage.completion_tokens
    first_s = times.first_s or times.ended_s
    planned_s = max(times.planned_s or times.arrived_s, times.arrived_s)
    prompt_ms = max(0.0, first_s - planned_s) * 1e3
    predicted_ms = max(0.0, times.ended_s - first_s) * 1e3
    return NativeTimings(
        cache_n=cached,
        prompt_n=computed,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=prompt_ms / max(1, computed),
        prompt_per_second=_rate(computed, prompt_ms),
        predicted_n=predicted,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=predicted_ms / max(1, predicted),
        predicted_per_second=_rate(predicted, predicted_ms),
    )


def _rate(tokens: int, took_ms: float) -> float:
    """Tokens a second."""
    return 1e3 * tokens / took_ms if took_ms > 0 else 0.0
