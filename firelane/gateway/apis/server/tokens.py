"""POST /tokenize and /detokenize, and GET /tokenizer_info, as vLLM has them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from firelane.api.chat import ChatRequest
from firelane.api.decode import BodyDecoder
from firelane.api.models import (
    ContentTokens,
    DetokenizeRequest,
    DetokenizeResponse,
    ModelQuery,
    TokenizeRequest,
    TokenizeResponse,
    TokenizerInfo,
    TokenPiece,
)
from firelane.api.stored.paging import read_query
from firelane.errors import RequestError
from firelane.gateway.bodies import Bodies
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.model_list import Models
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.services import Replies
from firelane.text.tokens.tokenizer import TextRoom, Tokenizer, unpack_ids


class TokenHandler:
    def __init__(self, models: Models, bodies: Bodies, replies: Replies) -> None:
        self._models = models
        self._bodies = bodies
        self._replies = replies
        self._tokenizes: BodyDecoder[TokenizeRequest] = BodyDecoder(TokenizeRequest)
        self._detokenizes: BodyDecoder[DetokenizeRequest] = BodyDecoder(DetokenizeRequest)

    def routes(self) -> Iterable[Route]:
        forth = Doc(
            summary="Text or messages to token ids",
            body=TokenizeRequest,
            answer=dict[str, Any],
        )
        back = Doc(summary="Token ids to text", body=DetokenizeRequest, answer=DetokenizeResponse)
        info = Doc(summary="What the tokenizer is", answer=TokenizerInfo, query=ModelQuery)
        yield Route("GET", "/tokenizer_info", self.info, doc=info)
        yield Route("POST", "/tokenize", self.tokenize, doc=forth)
        yield Route("POST", "/detokenize", self.detokenize, doc=back)

    def info(self, exchange: Exchange) -> None:
        name = read_query(exchange.request.query, ("model",)).get("model")
        model = self._models.find(name, exchange.request.tenant)
        names, template = model.prompts.files.specials, model.prompts.template
        answer = TokenizerInfo(
            vocab_size=model.tokenizer.num_ids,
            model_max_length=model.max_model_len,
            bos_token=names.get("bos_token"),
            eos_token=names.get("eos_token"),
            pad_token=names.get("pad_token"),
            unk_token=names.get("unk_token"),
            chat_template=None if template is None else template.source,
        )
        self._replies.json(exchange, answer)

    async def tokenize(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._tokenizes)
        model = self._models.find(request.model, exchange.request.tenant)
        with model.reserve_text(exchange):
            ids = await _ids(model, request, model.counting_room(exchange, "prompt"))
        if request.content is not None:
            self._replies.json(exchange, _content_tokens(model.tokenizer, ids, request.with_pieces is True))
            return
        strings = None
        if request.return_token_strs:
            strings = [model.tokenizer.core.id_to_token(token) or "" for token in ids]
        answer = TokenizeResponse(
            count=len(ids), max_model_len=model.max_model_len, tokens=ids, token_strs=strings
        )
        self._replies.json(exchange, answer)

    async def detokenize(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._detokenizes)
        model = self._models.find(request.model, exchange.request.tenant)
        ready = model.engines.ready
        known = max(model.tokenizer.num_ids, 0 if ready is None else ready.vocab_size)
        if request.tokens and max(request.tokens) >= known:
            raise RequestError(
                f"`tokens` has id {max(request.tokens)}, but the vocabulary has {known} entries",
                param="tokens",
            )
        with model.reserve_text(exchange):
            text = await asyncio.to_thread(model.tokenizer.decode, request.tokens)
        self._replies.json(exchange, DetokenizeResponse(prompt=text, content=text, text=text))


def _content_tokens(tokenizer: Tokenizer, ids: list[int], with_pieces: bool) -> ContentTokens:
    if not with_pieces:
        return ContentTokens(tokens=[*ids])
    return ContentTokens(tokens=[TokenPiece(id=one, piece=_piece(tokenizer.token_bytes(one))) for one in ids])


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def _ids(model: ServedModel, request: TokenizeRequest, room: TextRoom) -> list[int]:
    if request.messages is None:
        native = request.content is not None
        special = request.add_special is True if native else request.add_special_tokens is not False
        text = (request.content if native else request.prompt) or ""
        (packed,) = await model.prompts.encoder.encode([text], room, special=special)
        return unpack_ids(packed).tolist()
    chat = ChatRequest(
        messages=request.messages,
        tools=request.tools,
        add_special_tokens=request.add_special_tokens,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        chat_template_kwargs=request.chat_template_kwargs,
    )
    chat.check()
    prompt = await model.assistant.encode(await model.assistant.chat(chat, room), room)
    return prompt.ids.tolist()
