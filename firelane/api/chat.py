"""POST /v1/chat/completions: request and response."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from firelane.api.sampling import Count, Object, SamplingFields, check_shared, refuse_unsupported
from firelane.api.usage import Usage
from firelane.errors import RequestError

CHAT_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "documents": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "verbosity": ("medium",),
    "web_search_options": (),
    "echo": (False,),
}
ROLES = ("system", "developer", "user", "assistant")


class ContentPart(msgspec.Struct, kw_only=True):
    """Only parts of type "text" are understood."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of earlier answers that clients send back (`refusal`, `annotations` ...) are allowed when
    empty.
    """

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: Any = None
    annotations: Any = None
    audio: Any = None
    tool_calls: Any = None
    function_call: Any = None
    tool_call_id: Any = None
    reasoning_content: Any = None

    def text(self, where: str) -> str:
        """The content as one text. `where` names the message in errors. Raises RequestError on other
        content.
        """
        if isinstance(self.content, str):
            return self.content
        if self.content is None:
            raise RequestError(f"`{where}.content` is missing: give a text", param=where)
        return "".join(_part_text(part, f"{where}.content") for part in self.content)

    def check(self, where: str) -> None:
        if self.role not in ROLES:
            known = ", ".join(ROLES)
            raise RequestError(
                f"`{where}.role` is '{self.role[:40]}': supported are {known}", param=f"{where}.role"
            )
        for name in ("refusal", "audio", "tool_calls", "function_call", "tool_call_id"):
            if getattr(self, name):
                raise RequestError(
                    f"`{where}.{name}` is not supported by this server: leave it out",
                    param=f"{where}.{name}",
                    code="unsupported_parameter",
                )


def _part_text(part: ContentPart, where: str) -> str:
    if part.type != "text" or part.text is None:
        raise RequestError(
            f"`{where}` has a part of type '{part.type[:40]}': only parts of type 'text' are supported",
            param=where,
        )
    return part.text


class ChatRequest(SamplingFields, kw_only=True):
    """`max_completion_tokens` is the newer name of `max_tokens` and wins. `chat_template_kwargs` go to the
    template.
    """

    messages: Annotated[list[Message], Meta(min_length=1, max_length=1 << 16)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: Literal[False] | None = None
    chat_template_kwargs: Object | None = None
    parallel_tool_calls: Any = None
    audio: Any = None
    documents: Any = None
    modalities: Any = None
    prediction: Any = None
    tools: Any = None
    tool_choice: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    echo: Any = None

    def check(self) -> None:
        """Raises RequestError on values that are valid alone but not together, or not supported."""
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens
        check_shared(self)
        refuse_unsupported(self, CHAT_NEUTRAL)
        if self.max_tokens == 0:
            raise RequestError("`max_tokens` is 0: there is nothing to answer", param="max_tokens")
        if self.top_logprobs and not self.logprobs:
            raise RequestError("`top_logprobs` needs `logprobs` to be true", param="top_logprobs")
        for i, message in enumerate(self.messages):
            message.check(f"messages[{i}]")


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


class MessageToolCall(msgspec.Struct, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """tool_calls and reasoning_content are left out where there are none."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[MessageToolCall] = []


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatResponse(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None
