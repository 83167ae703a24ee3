"""Items of /v1/responses as a chat: the same conversation in the other API's words."""

from __future__ import annotations

from typing import Any

import msgspec

from firelane.api.chat import MARKS, ChatRequest, marks_of
from firelane.api.stored.responses import FunctionTool, ResponsesRequest, TextFormat
from firelane.api.stored.responses_items import CALL_TYPES, OUTPUT_TYPES, InputItem
from firelane.errors import RequestError
from firelane.gateway.apis.responses.parts import called_function, output_parts, parts_of
from firelane.gateway.apis.responses.tools import CALLED, ToolNames, functions, names_of

SAME_NAMES = (
    *("model", "stream", "temperature", "top_p", "parallel_tool_calls", "user", "seed", "stop", "top_k"),
    *("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "options", "prompt_cache_key"),
    *("chat_template_kwargs", "thinking_token_budget"),
)
"""Fields that chat has under the same name."""

COMPACTED = "[earlier messages left out: another server has put them into a form that only it can read]"

Body = dict[str, Any]
LINE: Body = {"type": "text", "text": "\n"}
"""Between two messages of one turn."""


def as_chat(request: ResponsesRequest, earlier: list[InputItem], own: list[InputItem]) -> ChatRequest:
    """The chat request of a checked request: items of earlier turns, then its own. Raises RequestError."""
    body: Body = {name: getattr(request, name) for name in SAME_NAMES}
    names = names_of(request.tools or [])
    body["messages"] = messages(request.instructions, earlier, own, names)
    body["max_completion_tokens"] = request.max_output_tokens
    if request.wants_logprobs:
        body |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    if request.reasoning is not None and request.reasoning.effort is not None:
        body["reasoning_effort"] = request.reasoning.effort
    body |= _tools(request, names)
    if request.text is not None and request.text.format is not None:
        body["response_format"] = _format(request.text.format)
    given = {name: value for name, value in body.items() if value is not None}
    try:
        chat = msgspec.convert(given, ChatRequest, str_keys=True)
    except msgspec.ValidationError as error:
        raise RequestError(f"the request has no form as a chat: {error}", code="invalid_value") from None
    request.give_answer_fields(chat)
    if request.response_format is not None:
        if chat.response_format is not None:
            raise RequestError(
                "`response_format` and `text.format` are both given: give one of them",
                param="response_format",
            )
        chat.response_format = request.response_format
    try:
        chat.check()
    except RequestError as error:
        raise RequestError(str(error), param=_own_name(error.param), code=error.code) from None
    return chat


def _own_name(field: str | None) -> str | None:
    return "input" if field == "messages" else field


def messages(
    instructions: str | None, earlier: list[InputItem], own: list[InputItem], names: ToolNames
) -> list[Body]:
    """Reasoning and calls go into the assistant's message that they belong to. Raises RequestError on an
    output whose call is not there."""
    made: list[Body] = []
    if instructions:
        made.append({"role": "system", "content": instructions})
    calls: set[str] = set()
    for i, item in enumerate((*earlier, *own), -len(earlier)):
        where = f"input[{i}]"
        if item.type in OUTPUT_TYPES:
            if item.call_key not in calls:
                raise RequestError(
                    f"`{where}.call_id`: no call of id '{item.call_key[:80]}' comes before it",
                    param=f"{where}.call_id",
                )
            made.append(_result(item, item.output))
        elif item.type == "message" and item.role != "assistant":
            made.append({"role": item.role, "content": parts_of(item.content, where)})
        elif item.type == "compaction":
            made.append({"role": "user", "content": COMPACTED})
        else:
            _add_to_turn(_assistant_turn(made), item, where, names)
            if item.type in CALL_TYPES:
                calls.add(item.call_key)
            if item.type == "mcp_call":
                made.append(_result(item, item.error if item.output is None else item.output))
        made[-1] |= marks_of(item)
    return made


def _assistant_turn(made: list[Body]) -> Body:
    """The assistant's message at the end, a new one where another speaks last."""
    if not made or made[-1]["role"] != "assistant":
        made.append({"role": "assistant", "content": []})
    return made[-1]


def _add_to_turn(turn: Body, item: InputItem, where: str, names: ToolNames) -> None:
    if item.type in CALL_TYPES:
        function = called_function(item, names)
        call: Body = {"id": item.call_key, "type": "function", "function": function}
        turn.setdefault("tool_calls", []).append(call)
    elif item.type == "reasoning":
        turn["reasoning_content"] = turn.get("reasoning_content", "") + item.thought(where)
    else:
        own = parts_of(item.content, where) if item.type == "message" else [{"type": item.type}]
        goes_on = [name for name in MARKS if turn.pop(name, False)] or not turn["content"]
        turn["content"] += own if goes_on else [LINE, *own]


def _result(item: InputItem, output: Any) -> Body:
    return {"role": "tool", "tool_call_id": item.call_key, "content": output_parts(output)}


def _tools(request: ResponsesRequest, names: ToolNames) -> Body:
    tools, choice = functions(request.tools or []), request.tool_choice
    mode = choice if choice is None or isinstance(choice, str) else _chosen(choice)
    if not tools and mode not in (None, "none", "auto"):
        raise RequestError("`tool_choice` asks for a call, but there are no `tools`", param="tool_choice")
    told = [_tool(tool, names.name_for_model(namespace, tool.name or "")) for namespace, tool in tools]
    body: Body = {"tools": told, "tool_choice": mode}
    return body if tools else {}


def _chosen(choice: Body) -> Body:
    kind = choice.get("type")
    if kind in CALLED:
        return {"type": kind, kind: {"name": choice.get("name")}}
    if kind != "allowed_tools":
        raise RequestError(
            f"`tool_choice.type` is '{str(kind)[:40]}': supported are function, custom, allowed_tools",
            param="tool_choice",
            code="unsupported_parameter",
        )
    listed: Any = choice.get("tools")
    tools: list[Any] = listed if isinstance(listed, list) else []
    named = [_chosen(tool) for tool in tools if isinstance(tool, dict)]
    return {"type": kind, "allowed_tools": {"mode": choice.get("mode", "auto"), "tools": named}}


def _tool(tool: FunctionTool, name: str) -> Body:
    if tool.type == "custom":
        format = None if tool.format is None else msgspec.to_builtins(tool.format)
        custom: Body = {"name": name, "description": tool.description, "format": format}
        return {"type": "custom", "custom": custom}
    function: Body = {
        "name": name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    return {"type": "function", "function": {k: v for k, v in function.items() if v is not None}}


def _format(form: TextFormat) -> Body:
    if form.type != "json_schema":
        return {"type": form.type}
    schema: Body = {
        "name": form.name,
        "description": form.description,
        "schema": form.schema,
        "strict": form.strict,
    }
    return {"type": form.type, "json_schema": {k: v for k, v in schema.items() if v is not None}}
