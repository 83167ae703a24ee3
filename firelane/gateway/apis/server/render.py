"""POST /v1/chat/completions/render and /v1/completions/render, as vLLM has them: what a model would read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from firelane.api.chat import CHAT_HINTS, ChatRequest
from firelane.api.completions import CompletionRequest
from firelane.api.decode import BodyDecoder
from firelane.api.models import RenderedPrompt
from firelane.api.sampling import HINTS, SamplingFields
from firelane.gateway.bodies import Bodies
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.model_list import Models
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.services import Replies
from firelane.text.prompt import Prompt


class RenderHandler:
    def __init__(self, models: Models, bodies: Bodies, replies: Replies) -> None:
        self._models = models
        self._bodies = bodies
        self._replies = replies
        self._chats: BodyDecoder[ChatRequest] = BodyDecoder(ChatRequest, CHAT_HINTS)
        self._completions: BodyDecoder[CompletionRequest] = BodyDecoder(CompletionRequest, HINTS)

    def routes(self) -> Iterable[Route]:
        chat = Doc(summary="The prompt of a conversation", body=ChatRequest, answer=RenderedPrompt)
        texts = Doc(summary="The prompts of texts", body=CompletionRequest, answer=list[RenderedPrompt])
        yield Route("POST", "/v1/chat/completions/render", self.chat, doc=chat)
        yield Route("POST", "/v1/completions/render", self.completions, doc=texts)

    async def chat(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._chats)
        model = self._models.find(request.model, exchange.request.tenant)
        with model.reserve_text(exchange):
            room = model.counting_room(exchange, "messages")
            chat = await model.assistant.chat(request, room)
            self._bodies.ignored.note(exchange, chat.ignored)
            prompt = await model.assistant.encode(chat, room)
            rendered = await asyncio.to_thread(_rendered, model, request, prompt)
        self._replies.json(exchange, rendered)

    async def completions(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._completions)
        model = self._models.find(request.model, exchange.request.tenant)
        with model.reserve_text(exchange):
            prompts = await model.prompts.completion(request, model.counting_room(exchange, "prompt"))
            made = [await asyncio.to_thread(_rendered, model, request, prompt) for prompt in prompts]
        self._replies.json(exchange, made)


def _rendered(model: ServedModel, fields: SamplingFields, prompt: Prompt) -> RenderedPrompt:
    """Cut where the request wants that, once an engine has said what it takes."""
    ready = model.engines.ready
    if ready is not None:
        prompt = model.prompts.truncated(fields, prompt, ready)
    ids = prompt.ids.tolist()
    text = model.tokenizer.decode(ids) if prompt.text is None else prompt.text
    return RenderedPrompt(token_ids=ids, text=text)
