"""POST /v1/messages and /v1/messages/count_tokens: the answers; /v1/models as Anthropic has it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


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
