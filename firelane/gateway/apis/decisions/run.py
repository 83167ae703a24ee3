"""A request for decisions with the engine: reads of its questions, and the answer that is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from firelane.errors import EngineDeadError, FirelaneError
from firelane.gateway.apis.decisions.labels import Answer, Found, Read, answer_of
from firelane.gateway.apis.decisions.prompts import DecisionPrompts, QuestionPrompt
from firelane.gateway.requests.admission import Reservation, cache_salt
from firelane.gateway.requests.models import ServedModel, adapted_salt
from firelane.gateway.requests.run import NewSequence, RequestRun, SequenceStats
from firelane.gateway.urgency import left_ms
from firelane.wire.frames import Finished, NewRequest, PagesAt, Sampling, Started, TokenLogprobs

WriteAnswers = Callable[[list[Answer]], bytes]


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """A read of the question of this number."""

    question: int
    read: Read


class DecisionRun(RequestRun):
    """Asks the first read alone: when it has its answer, the state's pages are in the KV cache, and the
    others compute their own tokens only. Each draws one token, which nobody looks at: what counts are the
    log-probabilities of labels in the row that it is drawn from.

    A model with recurrent state begins where it has a snapshot, and leaves one at the end of a prompt: there
    the prompt of the state alone goes ahead of all reads.
    """

    def __init__(
        self,
        model: ServedModel,
        reservation: Reservation,
        prompts: DecisionPrompts,
        reads: Sequence[PlannedRead],
        write: WriteAnswers,
        adapter: str,
    ) -> None:
        """write: makes the answer's JSON. The number of reads is that of its sequences."""
        session = f"decisions-{reservation.exchange.id}".encode()
        self._leads = model.serving().states_bytes > 0 and len(reads) > 1
        super().__init__(model, reservation, len(reads) + self._leads, session)
        self._prompts, self._reads, self._write = prompts, iter(reads), write
        self._found: list[Found] = [{} for _ in prompts.questions]
        self._window = reservation.sequences
        self._adapter = model.asked_adapter(adapter, None, self.exchange.request.tenant)
        salt = cache_salt(self.exchange.request.tenant.salt, None)
        self._salt = adapted_salt(salt, self._adapter)
        self._new_id = model.engines.next_id

    def first(self) -> Iterator[NewSequence]:
        if self._leads:
            yield self._sequence(None)
        else:
            yield from self._next()

    def _next(self) -> Iterator[NewSequence]:
        """The next read, where there is one."""
        planned = next(self._reads, None)
        if planned is not None:
            yield self._sequence(planned)

    def _sequence(self, planned: PlannedRead | None) -> NewSequence:
        """None: the state alone."""
        prompts, asked = self._prompts, self.exchange.request
        prompt, wanted = prompts.head, list[int]()
        if planned is not None:
            prompt = prompts.of(prompts.questions[planned.question], planned.read)
            wanted = list(planned.read.wanted)
        shared = len(prompts.head) // 4 if self.sequences else 0
        stats = SequenceStats(self._new_id(), len(prompt) // 4 - shared)
        request = NewRequest(
            id=stats.id,
            prompt=prompt,
            sampling=Sampling(temperature=0.0, max_tokens=1, logprobs=0, logprob_token_ids=wanted),
            salt=self._salt,
            tenant=asked.tenant.name,
            weight=asked.tenant.weight,
            background=asked.background,
            most_drafted=0,
            priority=asked.priority,
            deadline_ms=left_ms(asked.due_s),
            adapter=self._adapter,
        )
        return stats, ReadSink(stats, planned, shared, self), request

    def add(self, planned: PlannedRead, entry: TokenLogprobs) -> None:
        """The log-probabilities of a read."""
        found = self._found[planned.question].setdefault(planned.read.behind, {})
        found.update(zip(entry.top_ids, entry.top_logprobs, strict=True))

    def read_done(self, sequence: SequenceStats) -> None:
        """One read less. The next ones go to the engine as far as there is room."""
        sequence.done = True
        sequence.first_s = sequence.last_s = self._now_s()
        self.sequence_done(sequence, "stop")
        try:
            while not self.closed and self._has_room() and (new := next(self._next(), None)) is not None:
                self.submit(*new)
        except EngineDeadError as error:
            self.fail(error)

    def _has_room(self) -> bool:
        return sum(not one.done for one in self.sequences) < self._window

    def complete(self) -> None:
        questions = zip(self._prompts.questions, self._found, strict=True)
        answers = [answer_of(question.labels, found) for question, found in questions]
        self.exchange.respond(200, self._write(answers))

    def failure(self, body: bytes) -> bytes:
        raise AssertionError(f"decisions are not streamed: {body!r}")


class ReadSink:
    """The Sink of one read, or of the state alone. shared: its tokens that an earlier one counts."""

    __slots__ = ("_planned", "_run", "_shared", "_stats", "_told")

    def __init__(
        self, stats: SequenceStats, planned: PlannedRead | None, shared: int, run: DecisionRun
    ) -> None:
        self._stats, self._planned, self._shared, self._run = stats, planned, shared, run
        self._told = planned is None

    def on_started(self, started: Started, planned_s: float) -> None:
        self._stats.cached_tokens = max(0, started.cached_tokens - self._shared)
        self._stats.planned_s = planned_s
        self._run.started(self._stats)

    def on_logprobs(self, entry: TokenLogprobs) -> None:
        if self._planned is not None:
            self._told = True
            self._run.add(self._planned, entry)

    def on_waiting(self) -> None:
        """An answer in one piece has nothing to say meanwhile."""

    def on_tokens(self, tokens: Sequence[int], now_s: float) -> None:
        """The token that is drawn is not asked for."""

    def on_embedding(self, values: bytes) -> None:
        """Nobody asked for one."""

    def on_pages(self, pages: PagesAt) -> None:
        """Nobody asked for them."""

    def ending(self, finished: Finished) -> None:
        """An error leaves it without its log-probabilities."""

    def hold(self) -> None:
        """Its one token is not given out."""

    def release(self) -> None:
        """Its one token is not given out."""

    def on_end(self) -> None:
        if not self._told:
            self._run.fail(EngineDeadError("the engine failed on this request: try again"))
            return
        self._run.read_done(self._stats)

    def on_failed(self, error: FirelaneError) -> None:
        self._run.fail(error)


def planned_reads(questions: Sequence[QuestionPrompt]) -> list[PlannedRead]:
    return [PlannedRead(i, read) for i, question in enumerate(questions) for read in question.reads()]
