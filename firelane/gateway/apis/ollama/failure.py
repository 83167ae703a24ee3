"""OpenAI's error envelope as Ollama's."""

from __future__ import annotations

import msgspec

from firelane.api.errors import ErrorEnvelope
from firelane.gateway.apis.ollama.answer import OllamaError
from firelane.gateway.http.exchange import Exchange
from firelane.gateway.requests.formats import encode_json

_ENVELOPES: msgspec.json.Decoder[ErrorEnvelope] = msgspec.json.Decoder(ErrorEnvelope)


def failure(status: int, body: bytes) -> tuple[int, bytes]:
    """Status and body of Ollama's answer; body: an ErrorEnvelope."""
    return status, encode_json(OllamaError(error=_ENVELOPES.decode(body).error.message))


def answer_as_ollama(exchange: Exchange) -> None:
    """Give the exchange Ollama's form of errors."""
    exchange.error_form = failure
