"""OpenAI's error envelope as Anthropic's."""

from __future__ import annotations

import msgspec

from firelane.api.errors import ErrorEnvelope
from firelane.gateway.apis.messages.answer import MessagesError, MessagesErrorBody, MessagesErrorDetails
from firelane.gateway.apis.messages.types import THREAD_UNSUPPORTED
from firelane.gateway.http.exchange import Exchange
from firelane.gateway.requests.formats import encode_json

_ENVELOPES: msgspec.json.Decoder[ErrorEnvelope] = msgspec.json.Decoder(ErrorEnvelope)
OVERLOADED = 529
_BY_STATUS = {408: "timeout_error", 413: "request_too_large"}
_BY_TYPE = {"server_error": "api_error", "service_unavailable_error": "overloaded_error"}
_TOLD_CODES = (THREAD_UNSUPPORTED,)
"""Codes that Anthropic has, too."""


def failure(request_id: str, status: int, body: bytes) -> tuple[int, bytes]:
    """Status and body of Anthropic's answer; body: an ErrorEnvelope. A full queue is the server's state, not
    the client's fault: 529, as an engine that is not there.
    """
    error = _ENVELOPES.decode(body).error
    kind = _BY_STATUS.get(status) or _BY_TYPE.get(error.type, error.type)
    if kind == "overloaded_error" or error.code == "queue_full":
        status, kind = OVERLOADED, "overloaded_error"
    details = MessagesErrorDetails(error_code=error.code) if error.code in _TOLD_CODES else None
    told = MessagesErrorBody(type=kind, message=error.message, details=details)
    return status, encode_json(MessagesError(error=told, request_id=request_id))


def answer_as_anthropic(exchange: Exchange) -> None:
    """Give the exchange Anthropic's form of errors, and its header for the request's id."""
    exchange.extra_headers += b"request-id: %b\r\n" % exchange.id.encode()
    exchange.error_form = lambda status, body: failure(exchange.id, status, body)
