"""POST /classify and /pooling, in vLLM's form."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from firelane.api.embeddings import EmbeddingUsage, checked_inputs
from firelane.api.sampling import Count, RunOptions
from firelane.errors import RequestError

POOLED_HINTS = ("priority", "request_id", "softmax", "user")
TASKS = ("classify", "embed")
Inputs = str | Annotated[list[str | Count | list[Count]], Meta(max_length=1 << 20)]


class PooledRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`input`, `truncate_prompt_tokens`, `add_special_tokens`, `cache_salt` and `options`: as in
    EmbeddingRequest. `use_activation`, or `activation` (true): probabilities, else logits."""

    input: Inputs
    model: str | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    add_special_tokens: bool | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    use_activation: bool | None = None
    activation: bool | None = None
    options: RunOptions | None = None

    # Hints: see POOLED_HINTS.
    priority: Any = None
    request_id: Any = None
    softmax: Any = None
    user: Any = None

    @property
    def is_raw(self) -> bool:
        return False in (self.use_activation, self.activation)

    def inputs(self) -> list[str] | list[list[int]]:
        """One entry per answer. Raises RequestError."""
        return checked_inputs(self.input)

    def check(self) -> None:
        """Raises RequestError."""
        if self.truncate_prompt_tokens == 0:
            raise RequestError(
                "`truncate_prompt_tokens` is 0: use -1 or at least 1", param="truncate_prompt_tokens"
            )


class PoolingRequest(PooledRequest, kw_only=True):
    """`task`: "embed" for a vector of each text, of length 1 unless `normalize` says otherwise, "classify"
    for the probabilities of a model with labels; by the model where it is left out."""

    task: str | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    normalize: bool | None = None

    def check(self) -> None:
        super().check()
        if self.task not in (None, *TASKS):
            raise RequestError(
                f"`task` is {self.task[:80]!r}: use one of {', '.join(TASKS)}; vectors of single tokens are "
                "not given",
                param="task",
            )


class ClassItem(msgspec.Struct, frozen=True, kw_only=True):
    """label: the likeliest one's name. probs: of each label, in the model's order."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ClassItem]
    usage: EmbeddingUsage


class PoolingItem(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    object: Literal["pooling"] = "pooling"
    data: list[float]


class PoolingResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[PoolingItem]
    usage: EmbeddingUsage
