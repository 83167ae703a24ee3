"""POST /v1/chat/completions: the answer."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from firelane.api.usage import Usage


class TopLogprob(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    content: list[ChatLogprob]


class FunctionCall(msgspec.Struct, kw_only=True):
    """arguments: JSON text."""

    name: str
    arguments: str


class CustomCall(msgspec.Struct, kw_only=True):
    """input: the text for the tool."""

    name: str
    input: str


class MessageToolCall(msgspec.Struct, kw_only=True):
    """function, custom: the one of its type."""

    id: str
    type: Literal["function", "custom"] = "function"
    function: FunctionCall | UnsetType = UNSET
    custom: CustomCall | UnsetType = UNSET


class ChatMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """tool_calls, reasoning_content and function_call are left out where there are none. function_call: in
    place of tool_calls where the request has `functions`.
    """

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[MessageToolCall] = []
    function_call: FunctionCall | None = None


class ChatChoice(msgspec.Struct, kw_only=True, omit_defaults=True):
    """token_ids: only where the client asked for them."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    token_ids: list[int] | None = None


class ChatResponse(msgspec.Struct, kw_only=True):
    """service_tier, prompt_logprobs, prompt_token_ids: only where the client asked for them."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage | None
    service_tier: str | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
