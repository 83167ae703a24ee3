"""Results of `LLM.generate`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural logarithm of a token's probability under the model's raw distribution."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One output. token_ids hold a stop token if one was drawn, text does not. logprobs: one dictionary per
    token, the drawn token and the alternatives by id. finish_reason: "stop" or "length", None while it
    runs."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class RequestOutput:
    """The outputs of one prompt. prompt is None where token ids were given."""

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0

    @property
    def finished(self) -> bool:
        return all(output.finish_reason is not None for output in self.outputs)
