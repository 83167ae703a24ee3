"""Tools in a template's own way, or, where it knows none, told to the model in plain messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

from firelane.errors import RequestError
from firelane.text.template import ChatTemplate
from firelane.text.tools.cut_arguments import as_object
from firelane.text.tools.hermes import CLOSE, OPEN
from firelane.text.tools.json_list import PHI4_MINI

Messages = list[dict[str, Any]]
_PROBE: dict[str, Any] = {"name": "firelane_probe", "description": "", "parameters": {"type": "object"}}
_CUT = '{"firelane_key": "cut'
_INSTRUCTIONS = """You may call these functions, each given by a JSON schema:
{tools}
To call one, answer with its name and its arguments, and nothing else:
<tool_call>
{{"name": "function's name", "arguments": {{"argument": "value"}}}}
</tool_call>"""


class ToolRendering:
    """Renders conversations with tools. What a template understands is found by trying it, once."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def render(self, messages: Messages, tools: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        """Raises RequestError where the template refuses the messages or fails on them."""
        called = any(message.get("tool_calls") or message["role"] == "tool" for message in messages)
        if called and _has_text_arguments(messages) and not (self._knows_tools and self._takes_texts):
            messages = [_with_arguments(message, as_object) for message in messages]
        if tools or called:
            if self._reads_system_tools:
                messages = _with_system_tools([_with_listed_calls(message) for message in messages], tools)
            elif not self._knows_tools:
                messages = [_in_plain_words(message) for message in messages]
                messages = _instructed(messages, tools) if tools else messages
            elif not self._takes_objects:
                messages = [_with_arguments(message, _as_text) for message in messages]
            if self._knows_tools and tools:
                variables = {**variables, "tools": tools}
        return self._template.render(messages, variables)

    @cached_property
    def _knows_tools(self) -> bool:
        tools = [{"type": "function", "function": _PROBE}]
        return _PROBE["name"] in self._try([{"role": "user", "content": "?"}], tools)

    @cached_property
    def _reads_system_tools(self) -> bool:
        """Whether the tools are a text in the system message (Phi-4-mini)."""
        if self._knows_tools:
            return False
        messages = [
            {"role": "system", "content": "", "tools": _PROBE["name"]},
            {"role": "user", "content": "?"},
        ]
        return _PROBE["name"] in self._try(messages, [])

    @cached_property
    def _takes_objects(self) -> bool:
        """Whether the arguments of earlier calls may be objects; else they are JSON text."""
        text = self._try_call({"firelane_key": 1})
        return bool(text) and "'firelane_key'" not in text  # as Python writes an object, not JSON

    @cached_property
    def _takes_texts(self) -> bool:
        """Whether arguments that are a text are shown as they are, not as a JSON text of a text."""
        return _CUT in self._try_call(_CUT)

    def _try_call(self, arguments: Any) -> str:
        call = {"id": "abcdefghi", "type": "function"}
        function = {"name": _PROBE["name"], "arguments": arguments}
        messages = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": [call | {"function": function}]},
            {"role": "tool", "content": "1", "tool_call_id": call["id"], "name": _PROBE["name"]},
        ]
        return self._try(messages, [])

    def _try(self, messages: Messages, tools: list[dict[str, Any]]) -> str:
        variables = {"tools": tools} if tools else {}
        try:
            return self._template.render(messages, variables | {"add_generation_prompt": True})
        except RequestError:
            return ""


def _has_text_arguments(messages: Messages) -> bool:
    """Whether the arguments of some call are no object."""
    calls = (call for message in messages for call in message.get("tool_calls") or ())
    return any(isinstance(call["function"]["arguments"], str) for call in calls)


def _with_arguments(message: dict[str, Any], form: Callable[[Any], Any]) -> dict[str, Any]:
    """With the arguments of its calls put into another form."""
    if not message.get("tool_calls"):
        return message
    calls: list[dict[str, Any]] = []
    for call in message["tool_calls"]:
        arguments = form(call["function"]["arguments"])
        calls.append(call | {"function": call["function"] | {"arguments": arguments}})
    return message | {"tool_calls": calls}


def _as_text(arguments: dict[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _in_plain_words(message: dict[str, Any]) -> dict[str, Any]:
    """A message of a call or of its result, for a template that has only users and assistants."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message["tool_calls"]]
    parts = [message["content"], *(f"{OPEN}\n{call}\n{CLOSE}" for call in calls)]
    return {"role": "assistant", "content": "\n".join(filter(None, parts))}


def _with_listed_calls(message: dict[str, Any]) -> dict[str, Any]:
    """The calls as text, as a model writes them whose template knows no more of them than their results."""
    if not message.get("tool_calls"):
        return message
    calls = json.dumps([call["function"] for call in message["tool_calls"]], ensure_ascii=False)
    return {"role": "assistant", "content": f"{message['content']}{PHI4_MINI}{calls}"}


def _with_system_tools(messages: Messages, tools: list[dict[str, Any]]) -> Messages:
    if not tools:
        return messages
    listed = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    if messages and messages[0]["role"] == "system":
        return [messages[0] | {"tools": listed}, *messages[1:]]
    return [{"role": "system", "content": "", "tools": listed}, *messages]


def _instructed(messages: Messages, tools: list[dict[str, Any]]) -> Messages:
    """With the tools in the system message."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = _INSTRUCTIONS.format(tools=listed)
    if messages and messages[0]["role"] == "system":
        own = messages[0]["content"]
        return [messages[0] | {"content": f"{own}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
