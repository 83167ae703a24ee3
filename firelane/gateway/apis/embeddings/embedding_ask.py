"""Requests that need vectors, whatever API they came by: from texts or token ids to the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from firelane.api.sampling import RunOptions
from firelane.errors import ContextLengthError, RequestError
from firelane.gateway.apis.embeddings.embedding import EmbeddingJob, start_embedding
from firelane.gateway.apis.embeddings.vectors import VectorAnswer
from firelane.gateway.http.exchange import Exchange
from firelane.gateway.requests.admission import cache_salt
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.requests.turn import TimeSlice
from firelane.text.prompt import Prompt
from firelane.text.tokens.encoder import pack_prompts
from firelane.wire.frames import Pooling, Ready


def numbered_input(index: int) -> str:
    return f"`input` number {index}"


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingAsk:
    """A checked request. part: its field with the inputs; name_of: the name of one in errors. keep: so many
    tokens of an input at most, its last ones or, `from_start`, its first ones; -1: as many as there is room
    for. special: those of the tokenizer. pooling: None is the model's own.
    """

    inputs: list[str] | list[list[int]]
    answer: VectorAnswer
    part: str = "input"
    name_of: Callable[[int], str] = numbered_input
    keep: int | None = None
    from_start: bool = False
    special: bool = True
    pooling: Pooling | None = None
    cache_salt: str | None = None
    options: RunOptions | None = None


async def embed(model: ServedModel, exchange: Exchange, ask: EmbeddingAsk) -> None:
    """Admit the request, tokenise it, and submit what it begins with. Raises RequestError and
    EngineDeadError.
    """
    pooling, tenant = _pooling(ask, model), exchange.request.tenant
    window = min(len(ask.inputs), model.serving().max_num_seqs)
    with model.reserve(exchange, window, ask.options) as reservation:
        prompts = await _prompts(ask, model, exchange)
        reservation.charge(sum(map(len, prompts)), 0)
        if exchange.gone:
            return
        job = EmbeddingJob(
            prompts=prompts,
            pooling=pooling,
            answer=ask.answer,
            salt=cache_salt(tenant.salt, ask.cache_salt),
            window=window,
        )
        await start_embedding(model, reservation, job)


def _pooling(ask: EmbeddingAsk, model: ServedModel) -> Pooling:
    """The pooling that the request asks for, else the one that the model was trained with."""
    pooling = ask.pooling or model.prompts.pooling
    if pooling is None:
        raise RequestError(
            "this model pools in a way that this server does not have: name one as `pooling` of "
            "/v1/embeddings, `last` or `mean`",
            param="pooling",
        )
    return pooling


async def _prompts(ask: EmbeddingAsk, model: ServedModel, exchange: Exchange) -> list[Prompt]:
    """Cut where the request wants that. Raises ContextLengthError and RequestError."""
    ready = model.serving()
    keep = ready.max_model_len if ask.keep == -1 else ask.keep
    if isinstance(ask.inputs[0], str):
        room = replace(model.text_room(exchange, ask.part), keep=keep, from_start=ask.from_start)
        found = await model.prompts.encoder.encode(cast(list[str], ask.inputs), room, special=ask.special)
    else:
        found = await pack_prompts(cast(list[list[int]], ask.inputs))
    prompts = [Prompt(_cut(packed, keep, from_start=ask.from_start), None) for packed in found]
    turn = TimeSlice()
    for index, prompt in enumerate(prompts):
        _check_ids(ask, index, prompt, ready)
        await turn.take(len(prompt))
    return prompts


def _cut(packed: bytes, keep: int | None, *, from_start: bool) -> bytes:
    if keep is None:
        return packed
    return packed[: 4 * keep] if from_start else packed[-4 * keep :]


def _check_ids(ask: EmbeddingAsk, index: int, prompt: Prompt, ready: Ready) -> None:
    highest = max(prompt.ids, default=-1)
    name = ask.name_of(index)
    if highest < 0:
        raise RequestError(f"{name} has no tokens: give more text", param=ask.part)
    if highest >= ready.vocab_size:
        raise RequestError(
            f"{name} has token id {highest}, but the vocabulary has {ready.vocab_size} entries",
            param=ask.part,
        )
    if len(prompt) > ready.max_model_len:
        raise ContextLengthError(
            f"This model's maximum context length is {ready.max_model_len} tokens. However, {name} "
            f"has {len(prompt)} tokens. Please reduce its length.",
            param=ask.part,
        )
