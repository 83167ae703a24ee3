"""GLM-4 and GLM-Z1 up to 0414: a call is a message of its own, the tool's name on its first line and the
arguments as JSON behind it; further messages begin with <|assistant|>. No mark tells a call, only its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from firelane.text.tools.call_rules import (
    TokenOf,
    held_tools,
    inline_arguments,
    mark_symbol,
    quoted,
    repeated,
    tool_rules,
)
from firelane.text.tools.family import Called, Family
from firelane.text.tools.json_calls.json_call import stream_value
from firelane.text.tools.stream_buffer import Reading, StreamBuffer, begins, char, skip_space, until
from firelane.text.tools.tool import Tool

ASSISTANT = "<|assistant|>"
TELLS = "请使用 Json 格式表示调用的参数"
"""The words by which its templates ask for arguments in JSON."""
METADATA = "metadata"
"""The field of a message that its templates show on the line of the role."""
Message = dict[str, Any]


class Glm4(Family):
    """metadata: the template shows the name of a call from the field `metadata` of a message."""

    name = "glm4"
    delimiters = (ASSISTANT,)

    def __init__(self, *, metadata: bool) -> None:
        self._metadata = metadata

    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        yield from _read_call(buffer, 0)
        while mark := (yield from until(buffer, (ASSISTANT,), buffer.content, trim=True)):
            if not (yield from _read_call(buffer, len(mark))):
                buffer.take(len(mark))

    def written(self, calls: Sequence[Called]) -> str:
        return ASSISTANT.join(f"{name}\n{json.dumps(said, ensure_ascii=False)}" for name, said in calls)

    def rules(self, tools: Sequence[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        listed = repeated("call", mark_symbol(ASSISTANT, token_of), parallel=parallel)
        return f"calls: {listed}\n" + tool_rules(
            tools, lambda tool: f"{quoted(f'{tool.name}{chr(10)}')} {inline_arguments(tool)}"
        )

    def free_rules(
        self,
        tools: Sequence[Tool],
        token_of: TokenOf,
        reasoning: Sequence[str],
        *,
        parallel: bool,  # noqa: ARG002
    ) -> str:
        """Messages, each a call, or a text whose first line is not a tool's name alone; one message where no
        token parts them.
        """
        mark = token_of(ASSISTANT)
        more = "" if mark is None else f" (<[{mark}]> message?)*"
        names = "|".join(_pattern(tool) for tool in tools)
        text = rf"/(?s:.+)/ & ~/\s*({names})[ \t]*\n(?s:.*)/ & ~/(?s:.*)<\|assistant\|>(?s:.*)/"
        start = f"start: message?{more}\nmessage: call | FREE_TEXT\nFREE_TEXT: {text}\n"
        tokens = [token for one in reasoning if (token := token_of(one)) is not None]
        if len(tokens) == 2:
            thought = f"thought: (<[{tokens[0]}]> /(?s:.+)/? | FREE_TEXT?) <[{tokens[1]}]>\n"
            start = start.replace("start: ", "start: thought? ") + thought
        return start + tool_rules(
            held_tools(tools), lambda tool: rf"/\s*{_pattern(tool)}[ \t]*\n/ {inline_arguments(tool)}"
        )

    def history(self, messages: list[Message]) -> list[Message]:
        if not self._metadata:
            return messages
        return [made for message in messages for made in _messages(message)]


def _pattern(tool: Tool) -> str:
    return re.escape(tool.name).replace("/", r"\/")


def _read_call(buffer: StreamBuffer, at: int) -> Reading[bool]:
    """Read the call that a message begins with. False, with nothing taken, where there is none."""
    start = yield from skip_space(buffer, at)
    for name in buffer.tools:
        if not (yield from begins(buffer, start, name)):
            continue
        end = start + len(name)
        at = yield from skip_space(buffer, end)
        if (yield from char(buffer, at)) == "{" and "\n" in buffer.text[end:at]:
            buffer.take(at)
            buffer.start_call(name)
            yield from stream_value(buffer)
            return True
    return False


def _messages(message: Message) -> list[Message]:
    """Each call, and the text beside them, as a message of its own; a result from the role `observation`."""
    if message["role"] == "tool":
        return [{"role": "observation", "content": message["content"]}]
    if not message.get("tool_calls"):
        return [message]
    text = {key: value for key, value in message.items() if key != "tool_calls"}
    calls = [_call_message(**call["function"]) for call in message["tool_calls"]]
    return [text, *calls] if text["content"] else calls


def _call_message(name: str, arguments: dict[str, Any] | str) -> Message:
    said = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"role": "assistant", METADATA: name, "content": said}
