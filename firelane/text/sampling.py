"""Sampling values: which ones hold where a request names none, and all of them in the form of the wire, for
the server's APIs and the offline one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from firelane.wire.frames import Sampling

SEED_MASK = 2**63 - 1
Fallback = Literal["vllm", "llama.cpp"]
"""Whose values hold where neither the request nor the model's author names one. vllm: draw from the whole
vocabulary at temperature 1, as APIs for programs do. llama.cpp: leave unlikely tokens out, without which a
small model talks nonsense, as programs do in which people talk to a model."""
FALLBACKS: dict[Fallback, dict[str, float]] = {
    "vllm": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0},
    "llama.cpp": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.0},
}


def default_sampling(author: Mapping[str, float], fallback: Fallback) -> dict[str, float]:
    """The values of a request that names none. author: those that the model's author advises, each of which
    comes first."""
    return {name: author.get(name, value) for name, value in FALLBACKS[fallback].items()}


class SamplingValues(Protocol):
    """Sampling values of a request; None: the default."""

    @property
    def temperature(self) -> float | None: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def top_p(self) -> float | None: ...
    @property
    def min_p(self) -> float | None: ...
    @property
    def repetition_penalty(self) -> float | None: ...
    @property
    def presence_penalty(self) -> float | None: ...
    @property
    def frequency_penalty(self) -> float | None: ...
    @property
    def logit_bias(self) -> dict[int, float] | None: ...
    @property
    def min_tokens(self) -> int | None: ...


def wire_sampling(
    values: SamplingValues,
    defaults: Mapping[str, float],
    *,
    seed: int,
    max_tokens: int,
    stop_token_ids: list[int],
    reports: tuple[int, int],
) -> Sampling:
    """The Sampling that the engine is told. defaults: of `default_sampling`. reports: logprobs of output and
    prompt, -1 for none.
    """

    def value(given: float | None, name: str) -> float:
        return float(defaults[name] if given is None else given)

    return Sampling(
        temperature=value(values.temperature, "temperature"),
        top_k=max(0, int(value(values.top_k, "top_k"))),
        top_p=max(1e-6, value(values.top_p, "top_p")),
        min_p=value(values.min_p, "min_p"),
        repetition_penalty=value(values.repetition_penalty, "repetition_penalty"),
        presence_penalty=values.presence_penalty or 0.0,
        frequency_penalty=values.frequency_penalty or 0.0,
        logit_bias=sorted((values.logit_bias or {}).items()),
        seed=seed & SEED_MASK,
        max_tokens=max_tokens,
        min_tokens=min(values.min_tokens or 0, max_tokens),
        stop_token_ids=stop_token_ids,
        logprobs=reports[0],
        prompt_logprobs=reports[1],
    )
