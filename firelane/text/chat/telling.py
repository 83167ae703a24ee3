"""Tools, calls and results as one model's template takes them: in its own way, or, where it has none, in
plain messages that are written as the answers are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from firelane.text.rendering.template_probe import Messages, TemplateFacts
from firelane.text.rendering.tool_gaps import filled
from firelane.text.tools.cut_arguments import as_object
from firelane.text.tools.family import Called, Family

Message = dict[str, Any]
_EXAMPLE: Called = ("NAME", {"ARGUMENT": "VALUE"})
_INSTRUCTIONS = """You may call these functions, each given by a JSON schema:
{tools}
To call one, answer with its name and its arguments in this form, and nothing else:
{example}"""


@dataclass(frozen=True, slots=True)
class Telling:
    """The way in which a model is told of tools, and in which calls and results of earlier turns are shown.
    family: the way in which calls are written where the template has none of its own; None: as JSON."""

    facts: TemplateFacts
    family: Family | None

    def told(self, messages: Messages, tools: list[dict[str, Any]]) -> tuple[Messages, dict[str, Any]]:
        """Messages and variables for the template, which tell of these tools."""
        facts = self.facts
        messages = [self._shown(message) for message in messages]
        if not tools:
            return messages, self._no_tools
        if facts.tools_variable:
            return messages, {facts.tools_variable: [filled(tool, facts.gaps) for tool in tools]}
        if facts.tools_in_system:
            return _with_system_tools(messages, tools), self._no_tools
        return self._instructed(messages, tools), self._no_tools

    @property
    def _no_tools(self) -> dict[str, Any]:
        """The variables that say that there are no tools: `tools` is None, as transformers has it, unless the
        template fails on that.
        """
        return {"tools": None} if self.facts.takes_none else {}

    def _shown(self, message: Message) -> Message:
        if message["role"] == "tool" and not self._takes_results:
            return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
        if not message.get("tool_calls"):
            return message
        if not self.facts.calls:
            return self._in_plain_words(message)
        return _with_arguments(message | {"content": message["content"] or self.facts.blank}, self._arguments)

    def _arguments(self, given: dict[str, Any] | str) -> dict[str, Any] | str:
        """The arguments of a call in the form that the template takes."""
        if isinstance(given, str):
            given = given if self.facts.takes_texts else as_object(given)
        if isinstance(given, str) or self.facts.takes_objects:
            return given
        return json.dumps(given, ensure_ascii=False)

    @property
    def _takes_results(self) -> bool:
        facts = self.facts
        return bool(facts.calls) or (facts.shows_tools and facts.takes_results)

    def _in_plain_words(self, message: Message) -> Message:
        """The calls as text of the message."""
        functions = [call["function"] for call in message["tool_calls"]]
        calls = [(function["name"], as_object(function["arguments"])) for function in functions]
        parts = [message["content"], _written(self.family, calls)]
        kept = {key: value for key, value in message.items() if key != "tool_calls"}
        return kept | {"content": "\n".join(filter(None, parts))}

    def _instructed(self, messages: Messages, tools: list[dict[str, Any]]) -> Messages:
        """With the tools in the system message, or before a user's first text where there may be none."""
        listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        text = _INSTRUCTIONS.format(tools=listed, example=_written(self.family, [_EXAMPLE]))
        if messages and messages[0]["role"] == "system":
            return [_after(messages[0], text), *messages[1:]]
        if self.facts.takes_system:
            return [{"role": "system", "content": text}, *messages]
        first = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
        if first is None:
            return [{"role": "user", "content": text}, *messages]
        asked = messages[first] | {"content": f"{text}\n\n{messages[first]['content']}"}
        return [*messages[:first], asked, *messages[first + 1 :]]


def _written(family: Family | None, calls: list[Called]) -> str:
    if family is None:
        return "\n".join(json.dumps({"name": name, "arguments": said}) for name, said in calls)
    return family.written(calls)


def _after(message: Message, text: str) -> Message:
    return message | {"content": f"{message['content']}\n\n{text}" if message["content"] else text}


def _with_arguments(message: Message, form: Callable[[Any], Any]) -> Message:
    """With the arguments of its calls put into another form."""
    calls: list[dict[str, Any]] = []
    for call in message["tool_calls"]:
        arguments = form(call["function"]["arguments"])
        calls.append(call | {"function": call["function"] | {"arguments": arguments}})
    return message | {"tool_calls": calls}


def _with_system_tools(messages: Messages, tools: list[dict[str, Any]]) -> Messages:
    listed = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    if messages and messages[0]["role"] == "system":
        return [messages[0] | {"tools": listed}, *messages[1:]]
    return [{"role": "system", "content": "", "tools": listed}, *messages]
