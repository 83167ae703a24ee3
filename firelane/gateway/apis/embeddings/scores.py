"""/v1/score and /v1/rerank, as vLLM has them: scores of a model that makes such, or cosines of embeddings."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence

from firelane.api.decode import BodyDecoder
from firelane.errors import RequestError
from firelane.gateway.apis.embeddings.classes import PairScores, Write, check_pairs
from firelane.gateway.apis.embeddings.embedding import EmbeddingAsk, embed
from firelane.gateway.apis.embeddings.score_types import (
    SCORE_HINTS,
    RerankDocument,
    RerankRequest,
    RerankResponse,
    RerankResult,
    ScoreItem,
    ScoreRequest,
    ScoreResponse,
    ScoreUsage,
    VectorPairs,
)
from firelane.gateway.apis.embeddings.vectors import Cosines
from firelane.gateway.bodies import Bodies
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.formats import encode_json
from firelane.gateway.requests.model_list import Models
from firelane.gateway.requests.models import ServedModel
from firelane.text.tokens.tokenizer import TextPair

SCORE_PATHS = ("/v1/score", "/score")
RERANK_PATHS = ("/v1/rerank", "/v2/rerank", "/rerank")


class ScoreHandler:
    def __init__(self, models: Models, bodies: Bodies) -> None:
        self._models = models
        self._bodies = bodies
        self._scores: BodyDecoder[ScoreRequest] = BodyDecoder(ScoreRequest, SCORE_HINTS)
        self._reranks: BodyDecoder[RerankRequest] = BodyDecoder(RerankRequest, SCORE_HINTS)

    def routes(self) -> Iterable[Route]:
        score = Doc(summary="How alike pairs of texts are", body=ScoreRequest, answer=ScoreResponse)
        rerank = Doc(summary="Sort texts by a query", body=RerankRequest, answer=RerankResponse)
        for path in SCORE_PATHS:
            yield Route("POST", path, self.score, doc=score)
        for path in RERANK_PATHS:
            yield Route("POST", path, self.rerank, doc=rerank)

    async def score(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._scores)
        model = await self._models.find_loaded(request.model, exchange)
        model.check_plain(request.model)
        one, two = request.sides()
        name = request.model or model.name
        if model.prompts.files.embedding.labels:
            firsts = one * len(two) if len(one) == 1 else one
            pairs = [TextPair(*pair) for pair in zip(firsts, two, strict=True)]
            await _score(model, exchange, request, pairs, lambda found, tokens: _scores(name, found, tokens))
            return
        if len(one) == 1:
            texts, pairs = one + two, [(0, 1 + i) for i in range(len(two))]
        else:  # partners beside each other: few vectors wait
            texts = [text for pair in zip(one, two, strict=True) for text in pair]
            pairs = [(2 * i, 2 * i + 1) for i in range(len(two))]
        answer = Cosines(pairs, lambda cosines, tokens: _scores(name, cosines, tokens))
        await _embed(model, exchange, request, texts, answer)

    async def rerank(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._reranks)
        model = await self._models.find_loaded(request.model, exchange)
        model.check_plain(request.model)
        texts, name = request.texts(), request.model or model.name

        def write(scores: list[float], tokens: int) -> bytes:
            return _ranking(name, request, texts, scores, tokens)

        if model.prompts.files.embedding.labels:
            pairs = [TextPair(request.query, text) for text in texts]
            await _score(model, exchange, request, pairs, write)
            return
        answer = Cosines([(0, 1 + i) for i in range(len(texts))], write)
        await _embed(model, exchange, request, [request.query, *texts], answer)


async def _score(
    model: ServedModel, exchange: Exchange, request: VectorPairs, pairs: list[TextPair], write: Write
) -> None:
    """Pairs of a model that scores them by itself."""
    files = model.prompts.files.embedding
    check_pairs(files)
    answer = PairScores(len(pairs), is_raw=files.is_raw or request.is_raw, write=write)
    ask = EmbeddingAsk(
        inputs=pairs,
        answer=answer,
        part="documents" if isinstance(request, RerankRequest) else "text_2",
        name_of=lambda index: f"pair number {index}",
        keep=request.truncate_prompt_tokens,
        pooling=request.pooling,
        scores=True,
        cache_salt=request.cache_salt,
        options=request.options,
    )
    await embed(model, exchange, ask)


async def _embed(
    model: ServedModel, exchange: Exchange, request: VectorPairs, texts: list[str], answer: Cosines
) -> None:
    _check_cosines(model, request)
    part = "documents" if isinstance(request, RerankRequest) else "text_2"
    ask = EmbeddingAsk(
        inputs=texts,
        answer=answer,
        part=part,
        name_of=lambda index: f"text number {index}, all counted,",
        keep=request.truncate_prompt_tokens,
        pooling=request.pooling,
        cache_salt=request.cache_salt,
        options=request.options,
    )
    await embed(model, exchange, ask)


def _check_cosines(model: ServedModel, request: VectorPairs) -> None:
    """Raises RequestError for a model that was made to chat, whose hidden states rank badly."""
    files, ready = model.prompts.files, model.serving()
    if request.pooling is None and ready.can_generate and files.template and not files.embedding.is_embedder:
        raise RequestError(
            "this model was made to chat, not to compare texts: serve an embedding model or a reranker, or "
            "give `pooling` (`last` or `mean`) to compare its hidden states all the same",
            param="model",
            code="no_scores",
        )


def _scores(model: str, cosines: list[float], tokens: int) -> bytes:
    return encode_json(
        ScoreResponse(
            id="score-" + secrets.token_hex(12),
            created=int(time.time()),
            model=model,
            data=[ScoreItem(index=i, score=cosine) for i, cosine in enumerate(cosines)],
            usage=ScoreUsage(prompt_tokens=tokens, total_tokens=tokens),
        )
    )


def _ranking(
    model: str, request: RerankRequest, texts: Sequence[str], cosines: list[float], tokens: int
) -> bytes:
    order = sorted(range(len(cosines)), key=lambda i: -cosines[i])[: request.top_n or len(cosines)]
    results = [RerankResult(index=i, relevance_score=cosines[i]) for i in order]
    if request.return_documents is not False:
        results = [
            RerankResult(index=i, relevance_score=cosines[i], document=RerankDocument(text=texts[i]))
            for i in order
        ]
    usage = ScoreUsage(prompt_tokens=tokens, total_tokens=tokens)
    return encode_json(
        RerankResponse(id="rerank-" + secrets.token_hex(12), model=model, usage=usage, results=results)
    )
