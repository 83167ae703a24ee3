"""A request of Workers AI in the words of the chat API."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from firelane.api.chat import ChatRequest
from firelane.api.completions import CompletionRequest
from firelane.errors import RequestError
from firelane.gateway.apis.workers_ai.types import DEFAULT_MAX_TOKENS, RunFormat, RunMessage, RunRequest

SAME_NAMES = (
    *("stream", "options", "temperature", "top_p", "top_k", "seed"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty", "min_p", "stop"),
)
Body = dict[str, Any]


def as_completion(request: RunRequest, model: str) -> CompletionRequest:
    """The completion request of a request with `raw`."""
    made = CompletionRequest(prompt=request.prompt or "", model=model, max_tokens=_limit(request))
    for name in SAME_NAMES:
        setattr(made, name, getattr(request, name))
    request.give_answer_fields(made)
    made.check()
    return made


def as_chat(request: RunRequest, model: str) -> ChatRequest:
    """The chat request of any other checked request. Raises RequestError."""
    if request.messages is None:
        messages: list[Body] = [{"role": "user", "content": request.prompt}]
    else:
        messages = _messages(request.messages)
    body: Body = {"messages": messages, "max_tokens": _limit(request)}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    if request.response_format is not None:
        body["response_format"] = _format(request.response_format)
    try:
        made = msgspec.convert(body, ChatRequest)
    except msgspec.ValidationError as error:
        raise RequestError(f"the request has no form as a chat: {error}", code="invalid_value") from None
    made.model = model
    for name in SAME_NAMES:  # after the conversion: the range of `temperature` is wider here
        setattr(made, name, getattr(request, name))
    request.give_answer_fields(made)
    made.check()
    return made


def _limit(request: RunRequest) -> int:
    return DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens


def _messages(messages: list[RunMessage]) -> list[Body]:
    """A result without an id answers the earliest call of its name that has no result yet."""
    made: list[Body] = []
    waiting: list[tuple[str, str]] = []
    for message in messages:
        entry: Body = msgspec.to_builtins(message)
        entry = {name: value for name, value in entry.items() if value is not None}
        if message.tool_calls:
            entry["tool_calls"] = [_call(call, len(waiting) + i) for i, call in enumerate(message.tool_calls)]
            waiting += [(call["function"]["name"], call["id"]) for call in entry["tool_calls"]]
        elif message.role == "tool":
            entry["tool_call_id"] = message.tool_call_id or _answered(message.name, waiting)
        made.append(entry)
    return made


def _answered(name: str | None, waiting: list[tuple[str, str]]) -> str:
    for i, (called, call_id) in enumerate(waiting):
        if name in (None, called):
            del waiting[i]
            return call_id
    return "call_0"


def _call(call: Body, index: int) -> Body:
    """From either of the forms that an answer gives."""
    function: Body = call["function"] if isinstance(call.get("function"), dict) else call
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "id": str(call.get("id") or f"call_{index}"),
        "type": "function",
        "function": {"name": str(function.get("name")), "arguments": text},
    }


def _tool(tool: Body) -> Body:
    """With or without OpenAI's object around the function."""
    return tool if "function" in tool else {"type": "function", "function": tool}


def _format(form: RunFormat) -> Body:
    schema = form.json_schema
    if form.type != "json_schema":
        return {"type": form.type}
    if schema is None:
        raise RequestError("`response_format.json_schema` is missing", param="response_format.json_schema")
    wrapped = schema if isinstance(schema.get("schema"), dict) else {"schema": schema}
    return {"type": form.type, "json_schema": {"name": "answer", **wrapped}}
