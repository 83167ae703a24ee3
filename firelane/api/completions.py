"""POST /v1/completions: request and response."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from firelane.api.sampling import Count, SamplingFields, check_shared
from firelane.api.usage import Usage
from firelane.errors import RequestError
from firelane.request_limits import MAX_LOGPROBS

MAX_PROMPTS = 2048
MAX_BEST_OF = 20
Prompt = str | list[Any]


class CompletionRequest(SamplingFields, kw_only=True):
    """`prompt`: a text, a list of texts, a list of token ids, or a list of lists of token ids. `suffix`: the
    text behind a gap, whose filling is the answer. `logprobs`: how many alternatives to report for each token
    (0 = only the chosen one). `best_of`: so many answers are drawn, of which the n with the highest mean
    log-probability a token are given.
    """

    prompt: str | Annotated[list[str | Count | list[Count]], Meta(max_length=1 << 20)]
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_BEST_OF)] | None = None

    @property
    def fills(self) -> bool:
        """Whether the answer stands in a gap: the model's marks end it."""
        return bool(self.suffix)

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
        if len(self.prompts()) > MAX_PROMPTS:
            raise RequestError(
                f"`prompt` has {len(self.prompts())} prompts: at most {MAX_PROMPTS} are taken", param="prompt"
            )
        self._check_suffix()
        draws, keep = self.best_of or 1, self.n or 1
        if self.best_of is not None and draws < keep:
            raise RequestError(f"`best_of` ({draws}) is less than `n` ({keep})", param="best_of")
        if draws > keep and self.stream:
            raise RequestError("`best_of` is not available in a stream", param="best_of")
        if self.max_tokens == 0 and not self.echo:
            raise RequestError(
                "`max_tokens` is 0 without `echo`: there is nothing to answer", param="max_tokens"
            )

    def _check_suffix(self) -> None:
        if not self.suffix:
            return
        if not isinstance(self.prompts()[0], str):
            raise RequestError("`suffix` needs a `prompt` of text, not of token ids", param="suffix")
        for name in ("echo", "truncate_prompt_tokens"):
            if getattr(self, name):
                raise RequestError(f"`suffix` and `{name}` do not go together: leave one out", param=name)


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """Parallel lists, one entry a token; None for the first token of an echoed prompt."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, kw_only=True, omit_defaults=True):
    """prompt_logprobs, token_ids, prompt_token_ids: only where the client asked for them."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionResponse(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None
    service_tier: str | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET
