"""POST /v1/completions: request and response."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from firelane.api.sampling import Count, SamplingFields, check_shared
from firelane.api.usage import Usage
from firelane.errors import RequestError

Prompt = str | list[Any]


class CompletionRequest(SamplingFields, kw_only=True):
    """`prompt`: a text, a list of texts, a list of token ids, or a list of lists of token ids. `logprobs`:
    how many alternatives to report for each token (0 = only the chosen one).
    """

    prompt: str | Annotated[list[str | Count | list[Count]], Meta(max_length=1 << 20)]
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    suffix: str | None = None

    def prompts(self) -> list[str] | list[list[int]]:
        """One entry per prompt. Raises RequestError when the list is empty or mixes kinds."""
        prompt: Any = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt:
            raise RequestError("`prompt` is an empty list: give at least one prompt", param="prompt")
        kind: type = type(prompt[0])
        if any(type(item) is not kind for item in prompt):
            raise RequestError("`prompt` mixes texts, token ids and lists: use one kind", param="prompt")
        return [prompt] if kind is int else prompt

    def check(self) -> None:
        """Raises RequestError on values that are valid alone but not together, or not supported."""
        check_shared(self)
        if self.suffix:
            raise RequestError(
                "`suffix` is not supported by this server: leave it out",
                param="suffix",
                code="unsupported_parameter",
            )
        if self.max_tokens == 0 and not self.echo:
            raise RequestError(
                "`max_tokens` is 0 without `echo`: there is nothing to answer", param="max_tokens"
            )


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """Parallel lists, one entry a token; None for the first token of an echoed prompt."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class CompletionResponse(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None
