"""Requests of Ollama's API in the words of the chat and completions APIs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from firelane.api.chat import (
    CalledFunction,
    CallInMessage,
    ChatRequest,
    ContentPart,
    Message,
    ToolDefinition,
    marks_of,
)
from firelane.api.completions import CompletionRequest
from firelane.api.formats import JsonSchema, ResponseFormat
from firelane.api.sampling import SamplingFields
from firelane.api.speculation import DraftLimit
from firelane.errors import RequestError
from firelane.gateway.apis.ollama.types import (
    SAME_OPTIONS,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaOptions,
    OllamaRequest,
)
from firelane.request_limits import MOST_DRAFTED
from firelane.text.images.sources import data_url


def as_chat(request: OllamaChatRequest | OllamaGenerateRequest) -> ChatRequest:
    """The chat request of a checked request. Raises RequestError."""
    if isinstance(request, OllamaChatRequest):
        messages = _messages(request.messages or [])
    else:
        system = [Message(role="system", content=request.system)] if request.system else []
        messages = [*system, Message(role="user", content=request.prompt or "")]
    chat = ChatRequest(messages=messages, model=request.model)
    if isinstance(request, OllamaChatRequest) and request.tools:
        chat.tools = [ToolDefinition(type=t.type or "function", function=t.function) for t in request.tools]
    _set_shared(chat, request)
    _set_thinking(chat, request)
    chat.logprobs, chat.top_logprobs = request.logprobs, request.top_logprobs
    last = messages[-1]
    continued = last.role == "assistant" and not last.tool_calls
    chat.continue_final_message = (continued and bool(last.text("messages"))) or None
    chat.check()
    return chat


def as_completion(request: OllamaGenerateRequest) -> CompletionRequest:
    """The completion request of one that is not put into a template. Raises RequestError."""
    made = CompletionRequest(prompt=request.prompt or "", suffix=request.suffix, model=request.model)
    _set_shared(made, request)
    made.logprobs = (request.top_logprobs or 0) if request.logprobs else None
    made.check()
    return made


def ignored(request: OllamaRequest, of_chat: Sequence[str]) -> list[str]:
    """Parts that are taken and change nothing, though they ask for something. of_chat: the same of the chat
    that the request has become.
    """
    names = [] if request.options is None else request.options.given_hints()
    return [*names, *("think" if name == "reasoning_effort" else name for name in of_chat)]


def _set_shared(fields: SamplingFields, request: OllamaRequest) -> None:
    fields.stream = request.streams
    _set_options(fields, request.options or OllamaOptions())
    request.give_answer_fields(fields)
    form, fields.response_format = request.format, request.response_format
    if form and fields.response_format is not None:
        raise RequestError(
            "`response_format` and `format` are both given: give one of them", param="response_format"
        )
    if form == "json":
        fields.response_format = ResponseFormat(type="json_object")
    elif isinstance(form, dict):
        schema = JsonSchema(name="answer", schema=form)
        fields.response_format = ResponseFormat(type="json_schema", json_schema=schema)


def _set_options(fields: SamplingFields, options: OllamaOptions) -> None:
    for name in SAME_OPTIONS:
        setattr(fields, name, getattr(options, name))
    fields.repetition_penalty = None if options.repeat_last_n == 0 else options.repeat_penalty
    if options.num_predict is not None and options.num_predict > 0:
        fields.max_tokens = options.num_predict
    if options.seed == -1:
        fields.seed = None
    if options.draft_num_predict is not None and options.draft_num_predict >= 0:
        most = min(options.draft_num_predict, MOST_DRAFTED)
        fields.speculative = DraftLimit(num_speculative_tokens=most)


def _set_thinking(chat: ChatRequest, request: OllamaRequest) -> None:
    """A template that knows no such variable does not look at it."""
    think = request.think
    if think is None:
        return
    if isinstance(think, str):
        chat.reasoning_effort = think
    elif think:
        chat.chat_template_kwargs = {"enable_thinking": True}
    else:
        chat.reasoning_effort, chat.include_reasoning = "none", False


def _messages(messages: list[OllamaMessage]) -> list[Message]:
    """A result without an id answers the earliest call of its name that has no result yet."""
    made: list[Message] = []
    waiting: list[tuple[str, str]] = []
    for i, message in enumerate(messages):
        calls = [
            CallInMessage(
                id=call.id or f"call_{i}_{j}",
                function=CalledFunction(name=call.function.name, arguments=call.function.arguments),
            )
            for j, call in enumerate(message.tool_calls or ())
        ]
        waiting += [(call.function.name, call.id) for call in calls if call.function is not None]
        entry = Message(
            role=message.role,
            content=_content(message),
            reasoning_content=message.thinking or None,
            tool_calls=calls or None,
            **marks_of(message),
        )
        if message.role == "tool":
            entry.tool_call_id = message.tool_call_id or _answered(message.tool_name, waiting)
        made.append(entry)
    return made


def _content(message: OllamaMessage) -> str | list[ContentPart]:
    text, images = message.content or "", message.images
    if not images:
        return text
    given: list[Any] = images if isinstance(images, list) else [images]
    said = [ContentPart(type="text", text=text)] if text else []
    return [*(ContentPart(type="image", image_url=data_url("", image)) for image in given), *said]


def _answered(name: str | None, waiting: list[tuple[str, str]]) -> str:
    for i, (called, call_id) in enumerate(waiting):
        if name in (None, "", called):
            del waiting[i]
            return call_id
    return "call_0"
