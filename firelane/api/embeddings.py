"""POST /v1/embeddings: request and response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from firelane.api.reading.field_names import Refusal, refused
from firelane.api.sampling import Count, RunOptions
from firelane.errors import RequestError

MAX_INPUTS = 2048
NumberFormat = Literal["float32", "float16", "bfloat16"]
ByteOrder = Literal["native", "little", "big"]
REFUSED: Mapping[str, Refusal] = {
    "output_dtype": Refusal(("float", "float32"), "vectors are floats: see `embed_dtype`"),
    "embedding_types": Refusal((["float"],), "vectors are floats: see `embed_dtype`"),
    "embedding_type": Refusal(("float", "base64"), "vectors are floats: see `embed_dtype`"),
    "late_chunking": Refusal((False,)),
    **dict.fromkeys(
        ("task", "task_type"),
        Refusal(("",), "name the model's prompt as `prompt_name`, or put it into the text"),
    ),
    "messages": Refusal(([],), "send texts as `input`"),
}
"""Fields that change what a vector is, by the names of other servers."""


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`input`: a text, a list of texts, a list of token ids, or a list of lists of token ids; at most
    MAX_INPUTS of them. `dimensions`: keep so many numbers of each vector, its first ones.

    Fields that OpenAI lacks have vLLM's names. `truncate_prompt_tokens`: take the last so many tokens of an
    input, -1: as many as the model takes. `normalize` (true): scale vectors to length 1. `pooling`: of which
    positions a vector is made, the model's own kind where it is left out. `embed_dtype`, `endianness`: the
    format of the numbers, which counts for base64; numbers in JSON are those that the format holds.
    `prompt_name`: which of the model's prompts is put before each text, `input_type`: the same by a kind of
    input, as "query". `output_dimension` is another name of `dimensions`. `options` is of Workers AI.
    """

    input: str | Annotated[list[str | Count | list[Count]], Meta(max_length=1 << 20)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None

    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    normalize: bool | None = None
    pooling: Literal["last", "mean", "cls", "max"] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    embed_dtype: NumberFormat | None = None
    endianness: ByteOrder | None = None
    output_dimension: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    prompt_name: Annotated[str, Meta(max_length=256)] | None = None
    input_type: Annotated[str, Meta(max_length=256)] | None = None
    options: RunOptions | None = None

    # Refused: see REFUSED.
    output_dtype: Any = None
    embedding_types: Any = None
    embedding_type: Any = None
    late_chunking: Any = None
    task: Any = None
    task_type: Any = None
    messages: Any = None

    # Harmless: they change nothing about the answer.
    user: Any = None
    priority: Any = None
    request_id: Any = None

    def inputs(self) -> list[str] | list[list[int]]:
        """One entry per vector. Raises RequestError, as checked_inputs()."""
        return checked_inputs(self.input)

    def check(self) -> None:
        """Raises RequestError on values that type and range let through."""
        for name, refusal in REFUSED.items():
            if not refusal.asks_for_nothing(getattr(self, name)):
                raise refused(name, refusal.advice)
        if self.prompt_name and self.input_type:
            raise RequestError("give either `prompt_name` or `input_type`", param="input_type")
        if self.output_dimension is not None:
            if self.dimensions not in (None, self.output_dimension):
                raise RequestError(
                    "`output_dimension` and `dimensions` say different things: give one of them",
                    param="output_dimension",
                )
            self.dimensions = self.output_dimension
        if self.truncate_prompt_tokens == 0:
            raise RequestError(
                "`truncate_prompt_tokens` is 0: use -1 or at least 1", param="truncate_prompt_tokens"
            )


class EmbeddingItem(msgspec.Struct, kw_only=True):
    """`embedding`: numbers, or the base64 of their bytes."""

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


def checked_inputs(input: Any) -> list[str] | list[list[int]]:
    """One entry per answer, of a field `input`. Raises RequestError on an empty list or entry, on a mix of
    kinds, and on too many."""
    given: Any = input
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


def _wrong(what: str) -> RequestError:
    return RequestError(f"`input` {what}", param="input")


def _mixed() -> RequestError:
    return _wrong("mixes texts, token ids and lists: use one kind")
