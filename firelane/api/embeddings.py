"""POST /v1/embeddings: request and response."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from firelane.api.sampling import Count, RunOptions
from firelane.errors import RequestError

MAX_INPUTS = 2048


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`input`: a text, a list of texts, a list of token ids, or a list of lists of token ids; at most
    MAX_INPUTS of them. `dimensions`: keep so many numbers of each vector, its first ones.

    Fields that OpenAI lacks have vLLM's names. `truncate_prompt_tokens`: take the last so many tokens of an
    input, -1: as many as the model takes. `normalize` (true): scale vectors to length 1. `pooling`: of which
    positions a vector is made, the model's own kind where it is left out. `options` is of Workers AI.
    """

    input: str | Annotated[list[str | Count | list[Count]], Meta(max_length=1 << 20)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None

    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    normalize: bool | None = None
    pooling: Literal["last", "mean"] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    options: RunOptions | None = None

    # Harmless: they change nothing about the answer.
    user: Any = None
    priority: Any = None
    request_id: Any = None

    def inputs(self) -> list[str] | list[list[int]]:
        """One entry per vector. Raises RequestError on an empty list or entry, on a mix of kinds, and on too
        many.
        """
        given: Any = self.input
        if isinstance(given, str):
            given = [given]
        elif given and isinstance(given[0], int):
            given = [given]
            if any(type(token) is not int for token in given[0]):
                raise _mixed()
        if not given:
            raise _wrong("is an empty list: give at least one input")
        if len(given) > MAX_INPUTS:
            raise _wrong(f"has {len(given)} entries: at most {MAX_INPUTS} are taken")
        kind: type = type(given[0])
        for index, item in enumerate(given):
            if type(item) is not kind:
                raise _mixed()
            if not item:
                raise _wrong(f"has an empty entry, number {index}: give at least one character or token id")
        return given

    def check(self) -> None:
        """Raises RequestError on values that type and range let through."""
        if self.truncate_prompt_tokens == 0:
            raise RequestError(
                "`truncate_prompt_tokens` is 0: use -1 or at least 1", param="truncate_prompt_tokens"
            )


class EmbeddingItem(msgspec.Struct, kw_only=True):
    """`embedding`: numbers, or the base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage


def _wrong(what: str) -> RequestError:
    return RequestError(f"`input` {what}", param="input")


def _mixed() -> RequestError:
    return _wrong("mixes texts, token ids and lists: use one kind")
