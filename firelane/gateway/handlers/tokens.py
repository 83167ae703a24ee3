"""POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from firelane.api.decode import BodyDecoder
from firelane.api.models import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from firelane.gateway.exchange import Exchange
from firelane.gateway.parts import Parts
from firelane.gateway.routes import Route


class Tokens:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._tokenizes: BodyDecoder[TokenizeRequest] = BodyDecoder(TokenizeRequest)
        self._detokenizes: BodyDecoder[DetokenizeRequest] = BodyDecoder(DetokenizeRequest)

    def routes(self) -> Iterable[Route]:
        yield Route("POST", "/tokenize", self.tokenize)
        yield Route("POST", "/detokenize", self.detokenize)

    async def tokenize(self, exchange: Exchange) -> None:
        request = self._tokenizes.decode(exchange.request.body)
        self._parts.admission.check_model(request.model)
        encode = self._parts.tokenizer.encode
        ids = await asyncio.to_thread(encode, request.prompt, add_special_tokens=request.add_special_tokens)
        answer = TokenizeResponse(count=len(ids), max_model_len=self._parts.max_model_len, tokens=ids)
        self._parts.accounting.responded(200)
        exchange.respond(200, msgspec.json.encode(answer))

    async def detokenize(self, exchange: Exchange) -> None:
        request = self._detokenizes.decode(exchange.request.body)
        self._parts.admission.check_model(request.model)
        text = await asyncio.to_thread(self._parts.tokenizer.decode, request.tokens)
        self._parts.accounting.responded(200)
        exchange.respond(200, msgspec.json.encode(DetokenizeResponse(prompt=text)))
