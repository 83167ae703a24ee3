"""POST /v1/score and /v1/rerank: how alike texts are."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from firelane.api.embeddings import MAX_INPUTS
from firelane.api.sampling import RunOptions, unsupported
from firelane.errors import RequestError

SCORE_HINTS = ("priority", "softmax", "user")
REFUSED = ("chat_template", "instruction", "mm_processor_kwargs")
"""Made for models that score by themselves."""
Length = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Texts = str | list[str]


class VectorPairs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of scores and ranks. truncate_prompt_tokens: as in EmbeddingRequest; of a pair that a model
    scores by itself the second text is cut. use_activation, activation: false gives such a model's logits; a
    cosine is from -1 to 1 as it is."""

    model: str | None = None
    truncate_prompt_tokens: Length | None = None
    pooling: Literal["last", "mean", "cls", "max"] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    use_activation: bool | None = None
    activation: bool | None = None
    options: RunOptions | None = None

    # Hints: see SCORE_HINTS.
    priority: Any = None
    softmax: Any = None
    user: Any = None

    # Refused: see REFUSED.
    chat_template: Any = None
    instruction: Any = None
    mm_processor_kwargs: Any = None

    @property
    def is_raw(self) -> bool:
        """Whether logits are asked for."""
        return False in (self.use_activation, self.activation)

    def check_shared(self) -> None:
        """Raises RequestError."""
        for name in REFUSED:
            if getattr(self, name):
                raise unsupported(name)
        if self.truncate_prompt_tokens == 0:
            raise RequestError(
                "`truncate_prompt_tokens` is 0: use -1 or at least 1", param="truncate_prompt_tokens"
            )


class ScoreRequest(VectorPairs, kw_only=True):
    """One text and many others, or as many pairs. queries, documents: other names of text_1 and text_2."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None

    def sides(self) -> tuple[list[str], list[str]]:
        return _listed(self.text_1 or self.queries), _listed(self.text_2 or self.documents)

    def check(self) -> None:
        """Raises RequestError on values that are valid alone but not together, or not supported."""
        self.check_shared()
        for name, other in (("text_1", "queries"), ("text_2", "documents")):
            if getattr(self, name) and getattr(self, other):
                raise RequestError(f"give either `{name}` or `{other}`", param=name)
            given = _listed(getattr(self, name) or getattr(self, other))
            _check_texts(given, name)
        one, two = self.sides()
        if len(one) not in (1, len(two)):
            raise RequestError(
                f"`text_1` has {len(one)} texts and `text_2` {len(two)}: give one, or as many",
                param="text_1",
            )


class RerankDocument(msgspec.Struct, kw_only=True):
    text: str


class RerankRequest(VectorPairs, kw_only=True):
    """top_n 0: all. return_documents (true): the answer repeats them."""

    query: Annotated[str, Meta(min_length=1)]
    documents: Annotated[list[str | RerankDocument], Meta(max_length=MAX_INPUTS - 1)]
    top_n: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    return_documents: bool | None = None

    def texts(self) -> list[str]:
        return [one if isinstance(one, str) else one.text for one in self.documents]

    def check(self) -> None:
        """Raises RequestError on values that are valid alone but not together, or not supported."""
        self.check_shared()
        _check_texts(self.texts(), "documents")


class ScoreUsage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class ScoreItem(msgspec.Struct, frozen=True, kw_only=True):
    """score: the cosine of the two vectors."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ScoreItem]
    usage: ScoreUsage


class RerankResult(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    document: RerankDocument | UnsetType = UNSET
    relevance_score: float


class RerankResponse(msgspec.Struct, frozen=True, kw_only=True):
    """results: the most alike first; of equal ones the earlier."""

    id: str
    model: str
    usage: ScoreUsage
    results: list[RerankResult]


def _listed(given: Texts | None) -> list[str]:
    return [given] if isinstance(given, str) else given or []


def _check_texts(texts: list[str], name: str) -> None:
    """Raises RequestError."""
    if not texts:
        raise RequestError(f"`{name}` is empty: give at least one text", param=name)
    if len(texts) > MAX_INPUTS - 1:
        raise RequestError(f"`{name}` has {len(texts)} texts: at most {MAX_INPUTS - 1} are taken", param=name)
    if "" in texts:
        raise RequestError(
            f"`{name}` has an empty text, number {texts.index('')}: give at least one character", param=name
        )
