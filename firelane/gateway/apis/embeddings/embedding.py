"""Requests that need vectors, whatever is made of them and whatever API they came by: from texts or token ids
to the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, cast

from firelane.api.sampling import RunOptions
from firelane.errors import ContextLengthError, EngineDeadError, FirelaneError, RequestError
from firelane.gateway.apis.embeddings.vectors import VectorAnswer
from firelane.gateway.http.exchange import Exchange
from firelane.gateway.requests.admission import Reservation, cache_salt
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.requests.run import NewSequence, RequestRun, SequenceStats, TimeSlice
from firelane.text.embedding_files import PoolName, check_embeds
from firelane.text.tokens.tokenizer import TextPair, Tokenizer, pack_prompts, unpack_ids
from firelane.wire.frames import (
    Finished,
    NewRequest,
    PagesAt,
    Pooling,
    Ready,
    Sampling,
    Started,
    TokenLogprobs,
)


def numbered_input(index: int) -> str:
    return f"`input` number {index}"


class InputPrompt(NamedTuple):
    """Packed token ids of one input. second_text: as in NewRequest."""

    packed: bytes
    second_text: int

    @property
    def tokens(self) -> int:
        return len(self.packed) // 4


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingAsk:
    """A checked request. part: its field with the inputs; name_of: the name of one in errors. keep: so many
    tokens of an input at most, its last ones or, `from_start`, its first ones; -1: as many as there is room
    for. special: those of the tokenizer. pooling: None is the model's own. scores: of a model
    that scores texts these are asked for, not vectors.
    """

    inputs: list[str] | list[list[int]] | list[TextPair]
    answer: VectorAnswer
    part: str = "input"
    name_of: Callable[[int], str] = numbered_input
    keep: int | None = None
    from_start: bool = False
    special: bool = True
    pooling: PoolName | None = None
    scores: bool = False
    cache_salt: str | None = None
    options: RunOptions | None = None


async def embed(model: ServedModel, exchange: Exchange, ask: EmbeddingAsk) -> None:
    """Admit the request, tokenise it, and submit what it begins with. Raises RequestError and
    EngineDeadError.
    """
    pooling = _pooling(ask, model)
    window = min(len(ask.inputs), model.serving().max_num_seqs)
    with model.reserve(exchange, window, ask.options) as reservation:
        prompts = await _prompts(ask, model, exchange)
        reservation.charge(sum(prompt.tokens for prompt in prompts), 0)
        if exchange.gone:
            return
        run = EmbeddingRun(model, reservation, ask, prompts, pooling)
        await run.start(run.first_inputs())


def _pooling(ask: EmbeddingAsk, model: ServedModel) -> Pooling:
    """The pooling that the request asks for, else the one that the model was trained with. Raises
    RequestError."""
    files = model.prompts.files.embedding
    if not ask.scores:
        check_embeds(files)
    if ask.scores or model.serving().is_encoder:
        own = files.pooling if files.is_embedder else "mean"
        if ask.pooling not in (None, own):
            raise RequestError(
                f"this model pools by `{own}` and by nothing else: leave `pooling` out", param="pooling"
            )
        return "last"
    pooling = ask.pooling or files.pooling
    if ask.pooling in ("cls", "max"):
        raise RequestError(
            f"`pooling` is `{ask.pooling}`: this model pools by `last` or `mean`, only encoders by others",
            param="pooling",
        )
    if pooling not in ("last", "mean"):
        raise RequestError(
            "this model pools in a way that this server does not have: name one as `pooling` of "
            "/v1/embeddings, `last` or `mean`",
            param="pooling",
        )
    return pooling


async def _prompts(ask: EmbeddingAsk, model: ServedModel, exchange: Exchange) -> list[InputPrompt]:
    """Cut where the request wants that. Raises ContextLengthError and RequestError."""
    ready = model.serving()
    keep = ready.max_model_len if ask.keep == -1 else ask.keep
    room = replace(
        model.text_room(exchange, ask.part), keep=keep, from_start=ask.from_start or ready.is_encoder
    )
    encoder = model.prompts.encoder
    if isinstance(ask.inputs[0], TextPair):
        pairs = await encoder.encode_pairs(cast(list[TextPair], ask.inputs), room)
        prompts = [InputPrompt(*pair) for pair in pairs]
    elif isinstance(ask.inputs[0], str):
        found = await encoder.encode(cast(list[str], ask.inputs), room, special=ask.special)
        cut = partial(_cut_whole, tokenizer=model.tokenizer) if ready.is_encoder and ask.special else _cut
        prompts = [InputPrompt(cut(packed, keep, from_start=ask.from_start), 0) for packed in found]
    else:
        found = await pack_prompts(cast(list[list[int]], ask.inputs))
        prompts = [InputPrompt(_cut(packed, keep, from_start=ask.from_start), 0) for packed in found]
    time_slice = TimeSlice()
    for index, prompt in enumerate(prompts):
        _check_ids(ask, index, prompt, ready)
        await time_slice.take(prompt.tokens)
    return prompts


def _cut(packed: bytes, keep: int | None, *, from_start: bool) -> bytes:
    if keep is None:
        return packed
    return packed[: 4 * keep] if from_start else packed[-4 * keep :]


def _cut_whole(packed: bytes, keep: int | None, *, from_start: bool, tokenizer: Tokenizer) -> bytes:
    """The same for an encoder, which needs the marks at a text's end: its first tokens, and they."""
    del from_start
    if keep is None or len(packed) <= 4 * keep:
        return packed
    marks = max(0, len(tokenizer.encode("")) - 1)  # beside the one at the beginning
    return packed[: 4 * max(0, keep - marks)] + packed[len(packed) - 4 * min(keep, marks) :]


def _check_ids(ask: EmbeddingAsk, index: int, prompt: InputPrompt, ready: Ready) -> None:
    highest = max(unpack_ids(prompt.packed), default=-1)
    name = ask.name_of(index)
    if highest < 0:
        raise RequestError(f"{name} has no tokens: give more text", param=ask.part)
    if highest >= ready.vocab_size:
        raise RequestError(
            f"{name} has token id {highest}, but the vocabulary has {ready.vocab_size} entries",
            param=ask.part,
        )
    if prompt.tokens > ready.max_model_len:
        raise ContextLengthError(
            f"This model's maximum context length is {ready.max_model_len} tokens. However, {name} "
            f"has {prompt.tokens} tokens. Please reduce its length.",
            param=ask.part,
        )


class EmbeddingRun(RequestRun):
    """A request for vectors, with the engine. Hands it inputs, a few at a time, so that a long list leaves
    room for others; responds when all vectors are there.
    """

    def __init__(
        self,
        model: ServedModel,
        reservation: Reservation,
        ask: EmbeddingAsk,
        prompts: list[InputPrompt],
        pooling: Pooling,
    ) -> None:
        """prompts: one a vector. As many as are reserved are with the engine at a time, at most."""
        super().__init__(model, reservation, len(prompts))
        self._answer, self._prompts = ask.answer, prompts
        self._pooling: Pooling = pooling
        self._window = reservation.sequences
        self._salt = cache_salt(reservation.exchange.request.tenant.salt, ask.cache_salt)
        self._new_id = model.engines.next_id

    def first_inputs(self) -> Iterator[NewSequence]:
        """Inputs that may be with the engine at a time, with those that followed earlier ones meanwhile."""
        while len(self.sequences) < self._window:
            yield self._next_input()

    def _next_input(self) -> NewSequence:
        index, asked = len(self.sequences), self.exchange.request
        prompt = self._prompts[index]
        stats = SequenceStats(self._new_id(), prompt.tokens)
        request = NewRequest(
            id=stats.id,
            prompt=prompt.packed,
            sampling=Sampling(),
            salt=self._salt,
            tenant=asked.tenant.name,
            weight=asked.tenant.weight,
            background=asked.background,
            pooling=self._pooling,
            second_text=prompt.second_text,
        )
        return stats, EmbeddingInput(stats, index, self), request

    def add(self, sequence: SequenceStats, index: int, values: bytes) -> None:
        """The vector of an input."""
        self._answer.add(index, values)
        sequence.first_s = sequence.last_s = self._now_s()

    def input_done(self, sequence: SequenceStats) -> None:
        """One more vector is there."""
        sequence.done = True
        self.sequence_done(sequence, "stop")
        if not self.closed and len(self.sequences) < len(self._prompts):
            try:
                self.submit(*self._next_input())
            except EngineDeadError as error:
                self.fail(error)

    def complete(self) -> None:
        tokens = sum(prompt.tokens for prompt in self._prompts)
        self.exchange.respond(200, self._answer.body(tokens, self.times()))

    def failure(self, body: bytes) -> bytes:
        raise AssertionError(f"embeddings are not streamed: {body!r}")


class EmbeddingInput:
    """The Sink of one input."""

    __slots__ = ("_index", "_run", "_stats")

    def __init__(self, stats: SequenceStats, index: int, run: EmbeddingRun) -> None:
        self._stats, self._index, self._run = stats, index, run

    def on_started(self, started: Started, planned_s: float) -> None:
        self._stats.cached_tokens, self._stats.planned_s = started.cached_tokens, planned_s
        self._run.started(self._stats)

    def on_logprobs(self, entry: TokenLogprobs) -> None:
        """Nobody asked for them."""

    def on_waiting(self) -> None:
        """An answer in one piece has nothing to say meanwhile."""

    def on_tokens(self, tokens: Sequence[int], now_s: float) -> None:
        """An embedding has none."""

    def on_embedding(self, values: bytes) -> None:
        self._run.add(self._stats, self._index, values)

    def on_pages(self, pages: PagesAt) -> None:
        """Nobody asked for them."""

    def ending(self, finished: Finished) -> None:
        """An error leaves it without its vector."""

    def hold(self) -> None:
        """It has no tokens."""

    def release(self) -> None:
        """It has no tokens."""

    def on_end(self) -> None:
        if not self._stats.last_s:
            self._run.fail(EngineDeadError("the engine failed on this request: try again"))
            return
        self._run.input_done(self._stats)

    def on_failed(self, error: FirelaneError) -> None:
        self._run.fail(error)
