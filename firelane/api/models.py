"""GET /v1/models, POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from firelane.api.sampling import Count


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "firelane"
    root: str
    parent: None = None
    max_model_len: int | None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    prompt: str
    model: str | None = None
    add_special_tokens: bool = True


class TokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    max_model_len: int | None
    tokens: list[int]


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    tokens: Annotated[list[Count], Meta(max_length=1 << 20)]
    model: str | None = None


class DetokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str
