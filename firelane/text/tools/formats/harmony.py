"""Harmony, the format of gpt-oss: an answer is messages, each with a channel and perhaps a recipient.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>

Analysis is reasoning, a message to a function is a call, all else is content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from firelane.text.history import one_call_each
from firelane.text.tools.call_rules import TokenOf, held_tools, inline_arguments, symbols, tool_rules
from firelane.text.tools.family import Called, Family
from firelane.text.tools.json_calls.json_text import JsonText
from firelane.text.tools.raw_text import RawStrings, RuleWriter
from firelane.text.tools.stream_buffer import Reading, StreamBuffer, begins, char, match, skip_space, until
from firelane.text.tools.tool import Tool

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
CONSTRAIN = "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
FUNCTIONS = "functions."
_HEAD = re.compile(r"(?:[^<]|<\|(?:start|channel|constrain)\|>)*<\|message\|>")
_NO_HEAD = re.compile(r"<\|(?:end|call|return)\|>")
_BEGINNINGS = (CHANNEL, START, MESSAGE, "to=")
_ENDINGS = (END, CALL, RETURN, START, CHANNEL)
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL = re.compile(rf"{re.escape(CHANNEL)}\s*(\w+)")


class Harmony(Family):
    name = "harmony"
    delimiters = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
    stops = (CALL, RETURN)
    reads_reasoning = True
    content_mark = f"{CHANNEL}final{MESSAGE}"

    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        """A text that has no head at all is content."""
        while True:
            at = yield from skip_space(buffer, 0)
            if not (yield from char(buffer, at)):
                buffer.take(at)
                return
            head = yield from message_head(buffer, at, _BEGINNINGS, _HEAD, _NO_HEAD)
            yield from _message(buffer, head)

    def written(self, calls: Sequence[Called]) -> str:
        made = [
            f"{CHANNEL}commentary to={FUNCTIONS}{name} {CONSTRAIN}json{MESSAGE}"
            f"{json.dumps(arguments, ensure_ascii=False)}{CALL}"
            for name, arguments in calls
        ]
        return f"{START}assistant".join(made)

    def rules(self, tools: Sequence[Tool], token_of: TokenOf, *, parallel: bool) -> str:  # noqa: ARG002
        """One call, as the format's templates show no more, after as much analysis as the model wants."""
        said = _Said(self.delimiters, token_of)
        text = said.symbols

        def call(tool: Tool) -> str:
            to = f"to={FUNCTIONS}{tool.name}"
            heads = (
                f"{CHANNEL}commentary {to} {CONSTRAIN}json{MESSAGE}",
                f" {to}{CHANNEL}commentary {CONSTRAIN}json{MESSAGE}",
                f" {to}{CHANNEL}commentary json{MESSAGE}",
            )
            return f"({' | '.join(map(text, heads))}) {inline_arguments(tool)}"

        lines = ["calls: thought* call", said.message("thought", "analysis")]
        lines += [said.message("preamble", "commentary")]
        return "\n".join(lines) + "\n" + tool_rules(tools, call) + said.rules

    def free_rules(
        self, tools: Sequence[Tool], token_of: TokenOf, reasoning: Sequence[str], *, parallel: bool
    ) -> str:
        del reasoning
        final = super().content_rule(token_of)
        start = f"start: (thought | preamble)* (call | {final} /(?s:.+)/?)\n"
        return start + self.rules(held_tools(tools), token_of, parallel=parallel)

    def content_rule(self, token_of: TokenOf) -> str:
        return f"thought* {super().content_rule(token_of)}"

    def reasoning_rules(self, token_of: TokenOf) -> str:
        said = _Said(self.delimiters, token_of)
        thought = said.message("thought", "analysis")
        return f"before: {self.content_rule(token_of)}\n{thought}\n{said.rules}"

    def history(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return harmony_history(messages)


class _Said:
    """Rules of messages of a model's own text."""

    def __init__(self, delimiters: tuple[str, ...], token_of: TokenOf) -> None:
        self._delimiters, self._token_of, self._writer = delimiters, token_of, RuleWriter("part")
        self._text = RawStrings(END, END, delimiters, token_of, self._writer).matching({})

    def symbols(self, marks: str) -> str:
        return symbols(marks, self._delimiters, self._token_of)

    def message(self, rule: str, channel: str) -> str:
        """The rule of a message to this channel, behind which another one begins."""
        head, behind = self.symbols(f"{CHANNEL}{channel}{MESSAGE}"), self.symbols(f"{START}assistant")
        return f"{rule}: {head} {self._text} {behind}"

    @property
    def rules(self) -> str:
        return self._writer.text


def message_head(
    buffer: StreamBuffer,
    at: int,
    beginnings: tuple[str, ...],
    head: re.Pattern[str],
    no_head: re.Pattern[str],
) -> Reading[str]:
    """A message's head, taken; "", with nothing taken, where there is none. no_head: what no head holds."""
    for beginning in beginnings:
        if (yield from begins(buffer, at, beginning)):
            found = yield from match(buffer, head, at, no_head)
            return "" if found is None else buffer.take(found.end())
    return ""


def _message(buffer: StreamBuffer, head: str) -> Reading[None]:
    """Read what follows a head, to the message's end."""
    recipient, channels = _RECIPIENT.search(head), _CHANNEL.findall(head)
    if recipient is not None and _is_function(recipient[1], buffer):
        yield from _call(buffer, recipient[1].removeprefix(FUNCTIONS))
        return
    buffer.in_reasoning = channels[-1:] == ["analysis"]
    if not head and buffer.text.startswith((START, CHANNEL)):
        buffer.content(buffer.take(len(START)))  # of no message: or it would be looked at for ever
    yield from _body(buffer, buffer.reasoning if buffer.in_reasoning else buffer.content)
    buffer.in_reasoning = False


def _is_function(recipient: str, buffer: StreamBuffer) -> bool:
    return recipient in buffer.tools or (bool(buffer.tools) and recipient.startswith(FUNCTIONS))


def _call(buffer: StreamBuffer, name: str) -> Reading[None]:
    at = yield from skip_space(buffer, 0)
    first = yield from char(buffer, at)
    if first not in ("{", "") and not (yield from _ends(buffer, at)):  # arguments are an object
        yield from _body(buffer, buffer.content)
        return
    buffer.take(at)
    buffer.start_call(name)
    value = JsonText()
    behind: list[str] = []

    def give(text: str) -> None:
        if value.size is None:
            buffer.arguments(value.feed(text))
            text = "" if value.size is None else text[value.size :]
        behind.append(text)

    yield from _body(buffer, give)
    buffer.arguments(value.rest() if first == "{" else "{}")
    buffer.end_call()
    rest = "".join(behind)
    buffer.content(rest if rest.strip() else "")


def _ends(buffer: StreamBuffer, at: int) -> Reading[bool]:
    for mark in _ENDINGS:
        if (yield from begins(buffer, at, mark)):
            return True
    return False


def _body(buffer: StreamBuffer, give: Callable[[str], None]) -> Reading[None]:
    mark = yield from until(buffer, _ENDINGS, give)
    if mark in (END, CALL, RETURN):
        buffer.take(len(mark))


Message = dict[str, Any]


def harmony_history(messages: list[Message]) -> list[Message]:
    """One call a message, each followed by its result; reasoning by the name that the templates know, and
    only after the last whole answer: what led to an answer is not shown again.
    """
    made = one_call_each(messages)
    last = max((i for i, message in enumerate(made[:-1]) if _is_answer(message)), default=-1)
    return [_thinking(message, keep=i > last) for i, message in enumerate(made)]


def _is_answer(message: Message) -> bool:
    return message["role"] == "assistant" and not message.get("tool_calls")


def _thinking(message: Message, *, keep: bool) -> Message:
    if "reasoning_content" not in message:
        return message
    told = {key: value for key, value in message.items() if key != "reasoning_content"}
    if not keep:
        return told
    said = told.get("content") if message.get("tool_calls") else ""
    if said:  # templates take one of the two beside a call
        told["content"] = ""
    told["thinking"] = "\n".join(filter(None, (message["reasoning_content"], said)))
    return told
