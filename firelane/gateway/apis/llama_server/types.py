"""POST /completion, /infill and /apply-template: llama-server's own requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from firelane.api.completions import CompletionRequest
from firelane.api.sampling import INT64, AnswerFields, Count, Penalty, StopString
from firelane.errors import RequestError
from firelane.request_limits import MAX_BIAS

HINTS = (
    *("cache_prompt", "id_slot", "min_keep", "n_cache_reuse", "n_indent", "n_keep", "repeat_last_n"),
    *("return_progress", "samplers", "sse_ping_interval", "t_max_prompt_ms", "timings_per_token"),
)
"""Fields without which the answer is right all the same, or that say in which order samplers are asked."""
RANDOM_SEEDS = (-1, 2**32 - 1)
FieldPath = Annotated[str, Meta(max_length=128)]


Bias = Annotated[float, Meta(ge=-100, le=100)]
Biases = dict[Count, Bias] | Annotated[list[tuple[Count, Bias | Literal[False]]], Meta(max_length=MAX_BIAS)]
"""By token id, or as pairs; false: the token is never drawn."""
NEVER = -100.0


class NativeRequest(AnswerFields, kw_only=True):
    """Fields of both. n_predict: most tokens of the answer; 0: the prompt is computed alone, -1: as many as
    the context has room for. n_probs: alternatives to report for each token, where above 0.
    t_max_predict_ms: an answer that has a line ends so long after its first token; 0: it does not.
    response_fields: the fields of the answer that are wanted; one within an object is named by both, with a
    slash.
    """

    OWN_NAMES: ClassVar[Mapping[str, str]] = {
        "max_tokens": "n_predict",
        "repetition_penalty": "repeat_penalty",
    }
    NO_LIMIT: ClassVar[int | None] = -1

    model: str | None = None
    stream: bool | None = None
    n_predict: Annotated[int, Meta(ge=-2, le=2**31 - 1)] | None = None
    n_cmpl: int | None = None
    temperature: Annotated[float, Meta(le=5)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, INT64] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    n_probs: Annotated[int, Meta(ge=0, le=20)] | None = None
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    response_fields: Annotated[list[FieldPath], Meta(max_length=64)] | None = None
    t_max_predict_ms: Annotated[float, Meta(le=1e12)] | None = None
    logit_bias: Biases | None = None  # pyright: ignore[reportIncompatibleVariableOverride]

    # Hints: see HINTS.
    cache_prompt: Any = None
    id_slot: Any = None
    min_keep: Any = None
    n_cache_reuse: Any = None
    n_indent: Any = None
    n_keep: Any = None
    repeat_last_n: Any = None
    return_progress: Any = None
    samplers: Any = None
    sse_ping_interval: Any = None
    t_max_prompt_ms: Any = None
    timings_per_token: Any = None

    def check_native(self) -> None:
        """Raises RequestError."""
        if self.n_cmpl not in (None, 1):
            raise _refused("n_cmpl", "this path gives one answer: send several requests")
        if self.post_sampling_probs:
            raise _refused("post_sampling_probs", "probabilities are the model's own: leave it out")

    def set_shared(self, made: CompletionRequest) -> None:
        """Set the fields of a completion. Raises RequestError."""
        for name in ("top_k", "top_p", "min_p", "stop", "presence_penalty", "frequency_penalty"):
            setattr(made, name, getattr(self, name))
        self.give_answer_fields(made)
        if self.logit_bias is not None:
            pairs = self.logit_bias.items() if isinstance(self.logit_bias, dict) else self.logit_bias
            made.logit_bias = {token: NEVER if bias is False else bias for token, bias in pairs}
        made.stream, made.repetition_penalty = self.stream, self.repeat_penalty
        made.temperature = None if self.temperature is None else max(0.0, self.temperature)
        made.seed = None if self.seed in RANDOM_SEEDS else self.seed
        made.logprobs = self.n_probs or None
        made.check()
        made.max_tokens = -1 if self.n_predict is None or self.n_predict < 0 else self.n_predict


class NativeCompletionRequest(NativeRequest, kw_only=True):
    """prompt: a text or token ids."""

    prompt: str | Annotated[list[str | Count | list[Count]], Meta(max_length=1 << 20)]

    def check(self) -> None:
        """Raises RequestError on values that are valid alone but not together, or not supported."""
        self.check_native()
        prompts = CompletionRequest(prompt=self.prompt).prompts()
        if len(prompts) > 1:
            raise RequestError("`prompt` has several prompts: send several requests", param="prompt")

    def as_completion(self) -> CompletionRequest:
        """Raises RequestError."""
        made = CompletionRequest(prompt=self.prompt, model=self.model)
        self.set_shared(made)
        return made


class InputExtra(msgspec.Struct, kw_only=True):
    """A file, or a part of one, that the answer may need."""

    text: str
    filename: str | None = None


class InfillRequest(NativeRequest, kw_only=True):
    """input_prefix, input_suffix: what stands before and behind the gap. prompt: what of the line with the
    gap stands before it, behind `input_prefix`. input_extra: further files, the most useful last.
    """

    input_prefix: str
    input_suffix: str
    prompt: str | None = None
    input_extra: Annotated[list[InputExtra], Meta(max_length=1 << 10)] | None = None

    def check(self) -> None:
        """Raises RequestError on values that are valid alone but not together, or not supported."""
        self.check_native()

    def as_completion(self) -> FillRequest:
        """Raises RequestError."""
        made = FillRequest(prompt=self.input_prefix, model=self.model)
        self.set_shared(made)
        return made


class FillRequest(CompletionRequest, kw_only=True):
    """A completion whose prompt is made by hand, with marks."""

    @property
    def fills(self) -> bool:
        return True


def _refused(name: str, advice: str) -> RequestError:
    return RequestError(
        f"`{name}` is not supported by this server: {advice}", param=name, code="unsupported_parameter"
    )
