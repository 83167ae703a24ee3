"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from firelane.api.chat import ChatRequest
from firelane.api.decode import BodyDecoder
from firelane.api.models import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from firelane.errors import RequestError
from firelane.gateway.exchange import Exchange
from firelane.gateway.parts import Parts
from firelane.gateway.routes import Doc, Route


class Tokens:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._tokenizes: BodyDecoder[TokenizeRequest] = BodyDecoder(TokenizeRequest)
        self._detokenizes: BodyDecoder[DetokenizeRequest] = BodyDecoder(DetokenizeRequest)

    def routes(self) -> Iterable[Route]:
        forth = Doc(summary="Text or messages to token ids", body=TokenizeRequest, answer=TokenizeResponse)
        back = Doc(summary="Token ids to text", body=DetokenizeRequest, answer=DetokenizeResponse)
        yield Route("POST", "/tokenize", self.tokenize, doc=forth)
        yield Route("POST", "/detokenize", self.detokenize, doc=back)

    async def tokenize(self, exchange: Exchange) -> None:
        request = self._tokenizes.decode(exchange.request.body)
        request.check()
        parts = self._parts
        parts.gate.check_model(exchange, request.model)
        ids = await self._ids(request)
        strings = None
        if request.return_token_strs:
            strings = [parts.tokenizer.core.id_to_token(token) or "" for token in ids]
        answer = TokenizeResponse(
            count=len(ids), max_model_len=parts.max_model_len, tokens=ids, token_strs=strings
        )
        self._reply(exchange, answer)

    async def _ids(self, request: TokenizeRequest) -> list[int]:
        if request.messages is None:
            special = request.add_special_tokens is not False
            encode = self._parts.tokenizer.encode
            return await asyncio.to_thread(encode, request.prompt or "", add_special_tokens=special)
        chat = ChatRequest(
            messages=request.messages,
            tools=request.tools,
            add_special_tokens=request.add_special_tokens,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            chat_template_kwargs=request.chat_template_kwargs,
        )
        chat.check()
        (prompt,) = await self._parts.assistant.chat(chat).prompts()
        return prompt.ids

    async def detokenize(self, exchange: Exchange) -> None:
        request = self._detokenizes.decode(exchange.request.body)
        parts = self._parts
        parts.gate.check_model(exchange, request.model)
        ready = parts.link.ready
        known = max(parts.tokenizer.num_ids, 0 if ready is None else ready.vocab_size)
        if request.tokens and max(request.tokens) >= known:
            raise RequestError(
                f"`tokens` has id {max(request.tokens)}, but the vocabulary has {known} entries",
                param="tokens",
            )
        text = await asyncio.to_thread(parts.tokenizer.decode, request.tokens)
        self._reply(exchange, DetokenizeResponse(prompt=text))

    def _reply(self, exchange: Exchange, answer: msgspec.Struct) -> None:
        self._parts.accounting.responded(200)
        exchange.respond(200, msgspec.json.encode(answer))
