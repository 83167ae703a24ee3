"""A conversation in the one form that chat templates take, whichever API it came by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, cast

import msgspec

from firelane.api.chat import (
    CalledFunction,
    ChatRequest,
    Message,
    ToolDefinition,
    ToolReference,
    marks_of,
)
from firelane.api.sampling import unsupported
from firelane.errors import RequestError
from firelane.text.tools.custom.custom_tool import custom_tool
from firelane.text.tools.tool import Tool
from firelane.wire.frames import Grammar


@dataclass(frozen=True, slots=True)
class ToolUse:
    """mode: "required" means that the answer is one call or more; `name`, that it is one of this tool."""

    tools: tuple[Tool, ...] = ()
    mode: Literal["none", "auto", "required"] = "auto"
    name: str | None = None
    parallel: bool = True

    @property
    def active(self) -> bool:
        """Whether the answer may hold calls."""
        return bool(self.tools) and self.mode != "none"

    @property
    def forced(self) -> list[Tool]:
        """The tools of which one must be called; none where the model is free."""
        if self.mode != "required":
            return []
        return [tool for tool in self.tools if self.name in (None, tool.name)]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)


NO_TOOLS = ToolUse()
"""A request without tools."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatInput:
    """messages: as Hugging Face templates expect them, the arguments of calls as objects, or, where they are
    none, as text. grammar: what the
    answer must match. variables: further ones of the template. continue_final: the answer goes on with the
    last message's text. special: the tokenizer adds its own special tokens. hide_reasoning: it is made, but
    not given out. reasons_first: the grammar may hold behind the reasoning alone. budget: most tokens of
    reasoning, after the name of the field that says so. hints: further fields that change nothing.
    """

    messages: list[dict[str, Any]]
    use: ToolUse = NO_TOOLS
    grammar: Grammar | None = None
    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    reasoning_effort: str | None = None
    generation_prompt: bool = True
    continue_final: bool = False
    special: bool = False
    hide_reasoning: bool = False
    reasons_first: bool = True
    budget: tuple[str, int] | None = None
    hints: tuple[str, ...] = ()

    @property
    def asks_answer(self) -> bool:
        """The prompt ends where an answer begins."""
        return self.generation_prompt and not self.continue_final


def chat_conversation(request: ChatRequest, grammar: Grammar | None) -> ChatInput:
    """The conversation of a checked request. Raises RequestError."""
    budget = request.reasoning_budget()
    leaves_out = any(message.unread for message in request.messages)
    has_hint = request.thinking is not None and (budget is None or budget[0] != "thinking")
    return ChatInput(
        messages=template_messages(request.messages),
        use=tool_use(request),
        grammar=grammar,
        variables=dict(request.chat_template_kwargs or {}),
        reasoning_effort=request.reasoning_effort,
        generation_prompt=request.add_generation_prompt is not False,
        continue_final=request.continue_final_message is True,
        special=request.add_special_tokens is True,
        hide_reasoning=request.include_reasoning is False,
        reasons_first=not request.bad_words and request.allowed_token_ids is None,
        budget=budget,
        hints=("thinking",) * has_hint + ("messages[].content",) * leaves_out + _earlier_marks(request),
    )


def _earlier_marks(request: ChatRequest) -> tuple[str, ...]:
    """Marks of messages that are not the last one."""
    marks = {name for one in request.messages[:-1] if one.prefix or one.partial for name in marks_of(one)}
    return tuple(f"messages[].{name}" for name in sorted(marks))


def template_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Checked messages for a template. A `function_call` is one of `tool_calls` there, and its result a
    tool's. Raises RequestError.
    """
    made = [_template_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    call_id = ""
    for i, (message, entry) in enumerate(zip(messages, made, strict=True)):
        if message.function_call is not None:
            call_id = f"call_{i}"
            entry["tool_calls"] = [_function(message.function_call, call_id)]
        elif message.role == "function":
            entry |= {"role": "tool", "tool_call_id": call_id}
    return made


def _template_message(message: Message, where: str) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    entry: dict[str, Any] = {"role": role, "content": message.text(where)}
    for name in ("name", "tool_call_id"):
        if getattr(message, name) is not None:
            entry[name] = getattr(message, name)
    thought = message.reasoning_content or message.reasoning
    if thought:
        entry["reasoning_content"] = thought
    if message.tool_calls:
        entry["tool_calls"] = [
            _template_call(message, i, f"{where}.tool_calls[{i}]") for i in range(len(message.tool_calls))
        ]
    return entry


def _template_call(message: Message, index: int, where: str) -> dict[str, Any]:
    assert message.tool_calls is not None
    call = message.tool_calls[index]
    function = call.function
    if function is None and call.custom is not None:
        function = CalledFunction(name=call.custom.name, arguments={"input": call.custom.input})
    if function is None:
        raise unsupported(f"{where}.type", f"'{call.type[:40]}'")
    return _function(function, call.id)


def _function(function: CalledFunction, call_id: str) -> dict[str, Any]:
    called = {"name": function.name, "arguments": _arguments(function.arguments)}
    return {"id": call_id, "type": "function", "function": called}


def _arguments(given: Any) -> dict[str, Any] | str:
    """The object that they are. Where they are none, the text as it is: a limit has cut it, or another server
    let the model write it so.
    """
    value, text = given, given
    if isinstance(given, str):
        value = _decoded(given or "null")
    elif not isinstance(given, dict):
        text = msgspec.json.encode(given).decode()
    if value is None:
        return {}
    return cast(dict[str, Any], value) if isinstance(value, dict) else text


def _decoded(text: str) -> Any:
    """The text itself where it is no JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def tool_use(request: ChatRequest) -> ToolUse:
    """The tools of a checked request. Raises RequestError where `tool_choice` names another."""
    tools = tuple(_tool(tool) for tool in request.tools or ())
    parallel = request.parallel_tool_calls is not False
    choice = request.tool_choice
    if isinstance(choice, ToolReference):
        return _chosen(choice, tools, parallel)
    return ToolUse(tools, choice or "auto", parallel=parallel)


def _tool(tool: ToolDefinition) -> Tool:
    function, custom = tool.function, tool.custom
    if custom is not None:
        grammar = custom.format and custom.format.held("tools[].custom.format")
        said = (None, "") if grammar is None else (grammar.syntax, grammar.definition)
        return custom_tool(custom.name, custom.description, *said)
    assert function is not None
    return Tool(function.name, function.description, function.parameters, strict=function.strict is True)


def _chosen(choice: ToolReference, tools: tuple[Tool, ...], parallel: bool) -> ToolUse:
    if choice.allowed_tools is not None:
        names = {_known_name(one, tools) for one in choice.allowed_tools.tools}
        allowed = tuple(tool for tool in tools if tool.name in names)
        return ToolUse(allowed, choice.allowed_tools.mode, parallel=parallel)
    return ToolUse(tools, "required", _known_name(choice, tools), parallel=False)  # one call, as OpenAI's


def _known_name(choice: ToolReference, tools: tuple[Tool, ...]) -> str:
    custom = choice.type == "custom"
    named = choice.custom if custom else choice.function
    if choice.type not in ("function", "custom"):
        raise unsupported("tool_choice.type", f"'{choice.type[:40]}'")
    if named is None:
        where = f"tool_choice.{choice.type}"
        raise RequestError(f"`{where}` is missing", param=where, code="missing_parameter")
    name = named.name
    if all((tool.name, tool.custom) != (name, custom) for tool in tools):
        raise RequestError(
            f"`tool_choice` names '{name[:64]}', which is none of `tools`", param="tool_choice"
        )
    return name
