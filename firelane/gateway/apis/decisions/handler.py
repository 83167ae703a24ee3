"""POST /v1/systemone and POST /v1/decisions: questions with typed answers, by prefill alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from firelane.api.decode import BodyDecoder
from firelane.api.sampling import RunOptions
from firelane.errors import RequestError
from firelane.gateway.apis.decisions.decision_types import (
    DECISION_HINTS,
    DecisionRequest,
    DecisionResponse,
    TotalDecisionUsage,
    decision_on,
)
from firelane.gateway.apis.decisions.labels import Answer
from firelane.gateway.apis.decisions.prompts import decision_prompts
from firelane.gateway.apis.decisions.questions import Question, shown
from firelane.gateway.apis.decisions.run import DecisionRun, planned_reads
from firelane.gateway.apis.decisions.systemone_types import (
    SYSTEMONE_HINTS,
    DecisionUsage,
    SystemOneRequest,
    SystemOneResponse,
    answer_to,
)
from firelane.gateway.bodies import Bodies
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.formats import encode_json
from firelane.gateway.requests.generation import new_id
from firelane.gateway.requests.model_list import Models
from firelane.gateway.urgency import check_in_time


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionAsk:
    """A checked request, whatever API it came by. part: its field with the state. write: makes the answer's
    JSON of the model's name, the answers and the tokens of the input."""

    model: str | None
    part: str
    state: str
    questions: Sequence[Question]
    options: RunOptions | None
    write: Callable[[str, list[Answer], int], bytes]


class DecisionHandler:
    def __init__(self, models: Models, bodies: Bodies) -> None:
        self._models = models
        self._bodies = bodies
        self._systemone: BodyDecoder[SystemOneRequest] = BodyDecoder(SystemOneRequest, SYSTEMONE_HINTS)
        self._decisions: BodyDecoder[DecisionRequest] = BodyDecoder(DecisionRequest, DECISION_HINTS)

    def routes(self) -> Iterable[Route]:
        one = Doc(summary="Answer typed questions", body=SystemOneRequest, answer=SystemOneResponse)
        other = Doc(summary="Decide typed questions", body=DecisionRequest, answer=DecisionResponse)
        yield Route("POST", "/v1/systemone", self.systemone, doc=one)
        yield Route("POST", "/v1/decisions", self.decisions, doc=other)

    async def systemone(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._systemone)

        def write(model: str, answers: list[Answer], tokens: int) -> bytes:
            pairs = zip(request.questions.items(), answers, strict=True)
            found = {name: answer_to(question, answer) for (name, question), answer in pairs}
            usage = DecisionUsage(input_tokens=tokens)
            return encode_json(SystemOneResponse(model=model, answers=found, usage=usage))

        ask = DecisionAsk(
            model=request.model,
            part="state",
            state=shown(request.state),
            questions=request.asked(),
            options=request.options,
            write=write,
        )
        await self._decide(exchange, ask)

    async def decisions(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._decisions)

        def write(model: str, answers: list[Answer], tokens: int) -> bytes:
            pairs = zip(request.questions, answers, strict=True)
            return encode_json(
                DecisionResponse(
                    id=new_id("decision-"),
                    created=int(time.time()),
                    model=model,
                    answers=[decision_on(question, answer) for question, answer in pairs],
                    usage=TotalDecisionUsage(input_tokens=tokens, total_tokens=tokens),
                )
            )

        ask = DecisionAsk(
            model=request.model,
            part="input",
            state=request.state(),
            questions=request.asked(),
            options=request.options,
            write=write,
        )
        await self._decide(exchange, ask)

    async def _decide(self, exchange: Exchange, ask: DecisionAsk) -> None:
        """Raises RequestError and EngineDeadError."""
        model = await self._models.find_loaded(ask.model, exchange)
        if model.prompts.files.decision_head:
            raise RequestError(
                f"{model.name} decides with a head of its own ({model.prompts.files.decision_head}), which "
                "this server does not have: use a model without one",
                param="model",
            )
        window = min(len(ask.questions), model.serving().max_num_seqs)
        with model.reserve(exchange, window, ask.options) as reservation:
            room = model.text_room(exchange, ask.part)
            prompts = await decision_prompts(model.assistant, model.prompts, ask.state, ask.questions, room)
            check_in_time(exchange.request, model.metrics)
            reservation.charge(prompts.tokens, 0)
            if exchange.gone:
                return
            name, tokens = ask.model or model.name, prompts.tokens
            run = DecisionRun(
                model,
                reservation,
                prompts,
                planned_reads(prompts.questions),
                lambda answers: ask.write(name, answers, tokens),
                model.adapter(ask.model),
            )
            await run.start(run.first())
