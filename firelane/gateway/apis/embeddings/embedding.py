"""Requests for vectors, whatever is made of them: from tokenised inputs to the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from firelane.errors import EngineDeadError, FirelaneError
from firelane.gateway.apis.embeddings.vectors import VectorAnswer
from firelane.gateway.requests.admission import Reservation
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.requests.run import RequestRun
from firelane.text.prompt import Prompt
from firelane.wire.frames import (
    FinishReason,
    NewRequest,
    PagesAt,
    Pooling,
    Sampling,
    Started,
    TokenLogprobs,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingJob:
    """A checked, admitted and tokenised request. prompts: one a vector. salt: of the prefix cache. window:
    how many inputs are with the engine at a time, at most.
    """

    prompts: list[Prompt]
    pooling: Pooling
    answer: VectorAnswer
    salt: bytes
    window: int


async def start_embedding(model: ServedModel, reservation: Reservation, job: EmbeddingJob) -> None:
    """Submit the first inputs; the others follow as those end. Raises EngineDeadError."""
    answer = EmbeddingAnswer(model, job)
    run: RequestRun[EmbeddingInput] = RequestRun(model, reservation, answer, len(job.prompts))
    await run.start(answer.first_inputs(run))


class EmbeddingAnswer:
    """Hands inputs to the engine, a few at a time, so that a long list leaves room for others; responds when
    all vectors are there.
    """

    def __init__(self, model: ServedModel, job: EmbeddingJob) -> None:
        self.job = job
        self.now_s = model.admission.usage.now_s
        self._new_id = model.engines.next_id

    def first_inputs(self, run: RequestRun[EmbeddingInput]) -> Iterator[tuple[EmbeddingInput, NewRequest]]:
        """Inputs that may be with the engine at a time, with those that followed earlier ones meanwhile."""
        while len(run.sequences) < self.job.window:
            yield self.next_input(run)

    def next_input(self, run: RequestRun[EmbeddingInput]) -> tuple[EmbeddingInput, NewRequest]:
        job, asked = self.job, run.exchange.request
        one = EmbeddingInput(self._new_id(), len(run.sequences), run, self)
        request = NewRequest(
            id=one.id,
            prompt=job.prompts[one.index].packed,
            sampling=Sampling(),
            salt=job.salt,
            tenant=asked.tenant.name,
            weight=asked.tenant.weight,
            background=asked.background,
            pooling=job.pooling,
        )
        return one, request

    def input_done(self, run: RequestRun[EmbeddingInput]) -> None:
        """One more vector is there."""
        if not run.closed and len(run.sequences) < len(self.job.prompts):
            try:
                run.submit(*self.next_input(run))
            except EngineDeadError as error:
                run.fail(error)

    def complete(self, run: RequestRun[EmbeddingInput]) -> None:
        tokens = sum(map(len, self.job.prompts))
        run.exchange.respond(200, self.job.answer.body(tokens, run.times()))

    def failure(self, body: bytes) -> bytes:
        raise AssertionError(f"embeddings are not streamed: {body!r}")


class EmbeddingInput:
    """The Sequence of one input. embedded: its vector is there."""

    __slots__ = (
        *("_answer", "_done_s", "_run", "cached_tokens", "done", "embedded", "first_of_prompt"),
        *("generated", "id", "index", "planned_s"),
    )

    def __init__(
        self, request_id: int, index: int, run: RequestRun[EmbeddingInput], answer: EmbeddingAnswer
    ) -> None:
        self.id = request_id
        self.index = index
        self.embedded = False
        self.done = False
        self.first_of_prompt = True
        self.cached_tokens = self.generated = 0
        self.planned_s = self._done_s = 0.0
        self._run = run
        self._answer = answer

    @property
    def prompt_tokens(self) -> int:
        return len(self._answer.job.prompts[self.index])

    @property
    def first_s(self) -> float:
        return self._done_s

    @property
    def last_s(self) -> float:
        return self._done_s

    def on_started(self, started: Started, planned_s: float) -> None:
        self.cached_tokens, self.planned_s = started.cached_tokens, planned_s
        self._run.started(self)

    def on_logprobs(self, entry: TokenLogprobs) -> None:
        """Nobody asked for them."""

    def on_waiting(self) -> None:
        """An answer in one piece has nothing to say meanwhile."""

    def on_token(self, token: int, now_s: float) -> None:
        """An embedding has none."""

    def on_embedding(self, values: bytes) -> None:
        self._answer.job.answer.add(self.index, values)
        self.embedded = True
        self._done_s = self._answer.now_s()

    def on_pages(self, pages: PagesAt) -> None:
        """Nobody asked for them."""

    def ending(self, reason: FinishReason) -> None:
        """An error leaves it without its vector."""

    def on_end(self) -> None:
        if not self.embedded:
            self._run.fail(EngineDeadError("the engine failed on this request: try again"))
            return
        self.done = True
        self._run.sequence_done(self, "stop")
        self._answer.input_done(self._run)

    def on_failed(self, error: FirelaneError) -> None:
        self._run.fail(error)
