"""GET /props and /slots, and POST /apply-template: what llama-server tells of itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from firelane.api.chat import CHAT_HINTS, ChatRequest
from firelane.api.decode import BodyDecoder
from firelane.api.models import ModelQuery
from firelane.api.stored.paging import read_query
from firelane.engine_state import LinkState
from firelane.errors import EngineDeadError
from firelane.gateway.apis.llama_server.answer import (
    AppliedTemplate,
    DefaultSettings,
    PropsReport,
    SlotReport,
)
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.services import Services
from firelane.text.prompt import default_sampling

NO_SLOT = "fail_on_no_slot"


class SlotQuery(ModelQuery, kw_only=True):
    """fail_on_no_slot: 1 for status 503 where no place is free."""

    fail_on_no_slot: str | None = None


class LlamaServerHandler:
    def __init__(self, services: Services) -> None:
        self._models = services.models
        self._bodies = services.bodies
        self._replies = services.replies
        self._refresh = services.refresh
        self._version = services.version
        self._chats: BodyDecoder[ChatRequest] = BodyDecoder(ChatRequest, CHAT_HINTS)

    def routes(self) -> Iterable[Route]:
        props = Doc(summary="A model and its settings", answer=PropsReport, query=ModelQuery)
        slots = Doc(summary="Places in the engine's batch", answer=list[SlotReport], query=SlotQuery)
        template = Doc(summary="The text of a conversation", body=ChatRequest, answer=AppliedTemplate)
        yield Route("GET", "/props", self.props, doc=props)
        yield Route("GET", "/slots", self.slots, doc=slots)
        yield Route("POST", "/apply-template", self.apply_template, doc=template)

    def props(self, exchange: Exchange) -> None:
        model = self._asked(exchange, ("model", "autoload"))
        ready, names = model.serving(), model.prompts.files.specials
        template = model.prompts.template
        defaults = default_sampling(model.prompts.files.defaults, "llama.cpp")
        params = {"n_predict": -1, "seed": -1, **defaults, "stop": [], "stream": False}
        params["repeat_penalty"] = params.pop("repetition_penalty")
        report = PropsReport(
            default_generation_settings=DefaultSettings(n_ctx=ready.max_model_len, params=params),
            total_slots=ready.max_num_seqs,
            model_alias=model.name,
            model_path=model.name,
            modalities={"vision": False, "audio": False},
            chat_template="" if template is None else template.source,
            bos_token=names.get("bos_token", ""),
            eos_token=names.get("eos_token", ""),
            build_info=f"firelane-{self._version}",
            is_sleeping=model.engines.state is LinkState.STANDBY,
        )
        self._replies.json(exchange, report)

    async def slots(self, exchange: Exchange) -> None:
        """Numbers alone: whose requests are in the places is nobody's business."""
        await self._refresh()
        model = self._asked(exchange, ("model", NO_SLOT))
        ready, stats = model.serving(), model.engines.figures.stats
        busy = min(stats.running, ready.max_num_seqs)
        fails = read_query(exchange.request.query, ("model", NO_SLOT)).get(NO_SLOT, "")
        if fails not in ("", "0") and busy >= ready.max_num_seqs:
            raise EngineDeadError("no place in the engine's batch is free: try again later", retry_after_s=1)
        drafts = stats.spec_draft_tokens > 0
        report = [
            SlotReport(id=i, n_ctx=ready.max_model_len, speculative=drafts, is_processing=i < busy)
            for i in range(ready.max_num_seqs)
        ]
        self._replies.json(exchange, report)

    async def apply_template(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._chats)
        model = self._models.find(request.model, exchange.request.tenant)
        with model.reserve_text(exchange):
            room = model.counting_room(exchange, "messages")
            chat = await model.assistant.chat(request, replace(room, images=None))  # a text holds none
            self._bodies.ignored.note(exchange, chat.ignored)
        self._replies.send(exchange, msgspec.json.encode(AppliedTemplate(prompt=chat.text)))

    def _asked(self, exchange: Exchange, known: tuple[str, ...]) -> ServedModel:
        name = read_query(exchange.request.query, known).get("model")
        return self._models.find(name, exchange.request.tenant)
