"""POST /v1/messages and /v1/messages/count_tokens: the answers; /v1/models as Anthropic has it;
OpenAI's error envelope as Anthropic's.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from firelane.api.errors import ErrorEnvelope
from firelane.errors import DeadlineError
from firelane.gateway.apis.messages.types import THREAD_UNSUPPORTED
from firelane.gateway.http.exchange import Exchange
from firelane.gateway.requests.formats import encode_json

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
_ENVELOPES: msgspec.json.Decoder[ErrorEnvelope] = msgspec.json.Decoder(ErrorEnvelope)
OVERLOADED = 529
_BY_STATUS = {408: "timeout_error", 413: "request_too_large"}
_BY_TYPE = {"server_error": "api_error", "service_unavailable_error": "overloaded_error"}
_TOLD_CODES = (THREAD_UNSUPPORTED, DeadlineError.reason)
"""Codes by which clients do something: one that Anthropic has, too, and that of a missed deadline."""


class TextBlock(msgspec.Struct, kw_only=True, tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, kw_only=True, tag="thinking"):
    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, kw_only=True, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    thinking_tokens: int


class MessagesUsage(msgspec.Struct, frozen=True, kw_only=True):
    """All counts are tokens. The prompt's are those of input_tokens and of cache_read_input_tokens."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokensDetails
    service_tier: Literal["standard"] = "standard"


class MessageAnswer(msgspec.Struct, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage


class TokensCount(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int


class MessagesErrorDetails(msgspec.Struct, frozen=True, kw_only=True):
    """error_code: a word that Anthropic's clients act on."""

    error_code: str


class MessagesErrorBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """details: only where `error_code` is one that Anthropic's clients know."""

    type: str
    message: str
    details: MessagesErrorDetails | None = None


class MessagesError(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["error"] = "error"
    error: MessagesErrorBody
    request_id: str


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """created_at: RFC 3339, of the server's start. max_input_tokens, max_tokens: None until an engine is
    ready.
    """

    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None
    max_tokens: int | None


class ModelInfoList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


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
