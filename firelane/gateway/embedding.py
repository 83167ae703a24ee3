"""One request for embeddings in flight: its inputs, its answer, its place in the queue."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from firelane.api.embeddings import EmbeddingResponse, EmbeddingUsage
from firelane.api.errors import describe
from firelane.errors import EngineDeadError, FirelaneError
from firelane.gateway.engine_link import EngineLink
from firelane.gateway.exchange import retry_header
from firelane.gateway.ledger import CLIENT_GONE, Outcome
from firelane.gateway.parts import Parts
from firelane.gateway.prompt import pack_ids
from firelane.gateway.ticket import Ticket
from firelane.gateway.vectors import VectorForm
from firelane.telemetry.traces import RequestTimes
from firelane.wire.frames import FinishReason, NewRequest, Pooling, Sampling, TokenLogprobs

NO_DATA = b'"data":[]'


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingJob:
    """prompts: token ids, one list a vector. answer_model: the name that the answer repeats; model: the one
    that counts. salt: of the prefix cache. window: how many inputs are with the engine at a time, at most.
    """

    prompts: list[list[int]]
    pooling: Pooling
    form: VectorForm
    answer_model: str
    model: str
    salt: bytes
    window: int


class EmbeddingRun:
    """Hands inputs to the engine, a few at a time, so that a long list leaves room for others; answers when
    all vectors are there.
    """

    def __init__(self, job: EmbeddingJob, link: EngineLink, ticket: Ticket, parts: Parts) -> None:
        self.form = job.form
        self.now_s = parts.now_s
        self._job = job
        self._link = link
        self._ticket = ticket
        self._exchange = ticket.exchange
        self._accounting = parts.accounting
        self._admission = parts.admission
        self._arrived_s = ticket.arrived_s
        self._inputs: list[_Input] = []
        self._left = len(job.prompts)
        self._closed = False
        self._exchange.on_gone = self.cancel

    @property
    def began(self) -> bool:
        return any(one.planned_s for one in self._inputs)

    def start(self) -> None:
        """Submit the first inputs. Raises EngineDeadError."""
        if not self._exchange.request.background:
            self._admission.joined(self, self.now_s())
        for _ in range(min(self._job.window, len(self._job.prompts))):
            self._submit_next()

    def _submit_next(self) -> None:
        job, request, index = self._job, self._exchange.request, len(self._inputs)
        one = _Input(self._link.next_id(), index, self)
        self._inputs.append(one)
        self._link.submit(
            NewRequest(
                id=one.id,
                prompt=pack_ids(job.prompts[index]),
                sampling=Sampling(),
                salt=job.salt,
                tenant=request.tenant.name,
                weight=request.tenant.weight,
                background=request.background,
                pooling=job.pooling,
            ),
            one,
        )

    def started(self, index: int) -> None:
        self._accounting.started(len(self._job.prompts[index]))

    def ended(self) -> None:
        """One more vector is there."""
        self._accounting.ended("stop", self._lasted_s(), 0)
        self._left -= 1
        if self._left == 0:
            self._answer()
        elif len(self._inputs) < len(self._job.prompts) and not self._closed:
            try:
                self._submit_next()
            except EngineDeadError as error:
                self.fail(error)

    def _answer(self) -> None:
        self._closed = True
        self._settle(200, "stop")
        tokens = sum(map(len, self._job.prompts))
        usage = EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens)
        # Items are bytes already: each was written when its vector came, not all of them now.
        empty = msgspec.json.encode(EmbeddingResponse(data=[], model=self._job.answer_model, usage=usage))
        items = b",".join(one.item for one in self._inputs)
        self._accounting.responded(200)
        self._exchange.respond(200, empty.replace(NO_DATA, b'"data":[%b]' % items, 1))
        self._forget()

    def _lasted_s(self) -> float | None:
        background = self._exchange.request.background
        return None if background else self.now_s() - self._arrived_s

    def cancel(self) -> None:
        """The client has gone: free its sequences."""
        self._close("abort", CLIENT_GONE)

    def fail(self, error: FirelaneError) -> None:
        """End with an error."""
        if self._closed:
            return
        status, body = describe(error)
        self._close("error", status)
        self._accounting.responded(status)
        self._exchange.respond(status, body, headers=retry_header(error))

    def _close(self, reason: str, status: int) -> None:
        if self._closed:
            return
        self._closed = True
        for one in self._inputs:
            if not one.item:
                self._link.abort(one.id)
                self._accounting.ended(reason, self._lasted_s(), 0)
        self._settle(status, reason)
        self._forget()

    def _forget(self) -> None:
        """Inputs point to their owner: without this, only the garbage collector would free an answer."""
        self._inputs = []

    def _settle(self, status: int, reason: str) -> None:
        """Give back what the request held, and have it counted. Inputs that never started cost nothing."""
        begun = [one for one in self._inputs if one.planned_s]
        times = RequestTimes(self._arrived_s, self.now_s())
        for one in begun:
            times.add(one.planned_s, one.done_s, one.done_s)
        self._admission.left(self)
        self._ticket.close(
            Outcome(
                status=status,
                reason=reason,
                model=self._job.model,
                prompt_tokens=sum(len(self._job.prompts[one.index]) for one in begun),
                cached_tokens=sum(one.cached_tokens for one in begun),
                generated_tokens=0,
                times=times,
            )
        )


class _Input:
    """The Sink of one input. item: the JSON of its vector, b"" until it is there."""

    __slots__ = ("_reason", "_run", "cached_tokens", "done_s", "id", "index", "item", "planned_s")

    def __init__(self, request_id: int, index: int, run: EmbeddingRun) -> None:
        self.id = request_id
        self.index = index
        self.item = b""
        self.cached_tokens = 0
        self.planned_s = self.done_s = 0.0
        self._run = run
        self._reason: FinishReason | None = None

    def on_started(self, cached_tokens: int, planned_s: float) -> None:
        self.cached_tokens, self.planned_s = cached_tokens, planned_s
        self._run.started(self.index)

    def on_logprobs(self, entry: TokenLogprobs) -> None:
        """Nobody asked for them."""

    def on_token(self, token: int, now_s: float) -> None:
        """An embedding has none."""

    def on_embedding(self, values: bytes) -> None:
        self.item = self._run.form.item(self.index, values)
        self.done_s = self._run.now_s()

    def ending(self, reason: FinishReason) -> None:
        self._reason = reason

    def on_end(self) -> None:
        if self.item:
            self._run.ended()
        else:
            what = "is shutting down" if self._reason == "abort" else "failed on this request"
            self._run.fail(EngineDeadError(f"the engine {what}: try again"))

    def on_failed(self, error: FirelaneError) -> None:
        self._run.fail(error)
