"""Sampling values of a request in the form of the wire, for the server's APIs and the offline one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from firelane.wire.frames import Sampling

SEED_MASK = 2**63 - 1


class SamplingValues(Protocol):
    """Sampling values of a request; None: as the model's author advises, else plain sampling."""

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
    """The Sampling that the engine is told. defaults: of the model's author. reports: logprobs of output and
    prompt, -1 for none.
    """

    def value(given: float | None, name: str, default: float) -> float:
        return float(defaults.get(name, default) if given is None else given)

    return Sampling(
        temperature=value(values.temperature, "temperature", 1.0),
        top_k=max(0, int(value(values.top_k, "top_k", 0))),
        top_p=max(1e-6, value(values.top_p, "top_p", 1.0)),
        min_p=value(values.min_p, "min_p", 0.0),
        repetition_penalty=value(values.repetition_penalty, "repetition_penalty", 1.0),
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
