"""Muse Glimmer: an answer is messages with recipients, and calls are tags in messages to tools.

    to=self<|message|>...<|eom|><|start|>assistant to=user<|message|>...<|eot|>
    to=f<|message|><atem:function_calls>...</atem:function_calls><|eot|>

A message to self is reasoning, one to a tool is calls, all else is content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from firelane.text.tools.call_rules import TokenOf, held_tools, repeated, symbols, tool_rules
from firelane.text.tools.family import Called, Family
from firelane.text.tools.formats.harmony import message_head
from firelane.text.tools.raw_text import RawStrings, RuleWriter
from firelane.text.tools.stream_buffer import Reading, StreamBuffer, char, skip_space, until
from firelane.text.tools.tagged_calls.tagged import Tagged
from firelane.text.tools.tagged_calls.tagged_rules import TaggedRules
from firelane.text.tools.tagged_calls.tags import ATEM, closing
from firelane.text.tools.tool import Tool

START, MESSAGE, NEXT, END = "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"
_HEAD = re.compile(r"(?:[^<]|<\|start\|>)*<\|message\|>")
_NO_HEAD = re.compile(r"<\|(?:eom|eot)\|>")
_BEGINNINGS = (START, MESSAGE, "to=")
_ENDINGS = (NEXT, END, START)
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_AGAIN = f"{START}assistant"


class MuseGlimmer(Family):
    name = "muse_glimmer"
    delimiters = (START, MESSAGE, NEXT, END, *ATEM.delimiters)
    stops = (END,)
    reads_reasoning = True
    content_mark = f" to=user{MESSAGE}"

    def __init__(self) -> None:
        self._calls = Tagged(self.name, ATEM)

    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        """A text that has no head at all is content."""
        while True:
            at = yield from skip_space(buffer, 0)
            if not (yield from char(buffer, at)):
                buffer.take(at)
                return
            head = yield from message_head(buffer, at, _BEGINNINGS, _HEAD, _NO_HEAD)
            if not head and buffer.text.startswith(START):
                buffer.content(buffer.take(len(START)))  # of no message: or it would be looked at for ever
            mark = yield from self._message(buffer, head)
            buffer.take(len(mark) if mark in (NEXT, END) else 0)

    def _message(self, buffer: StreamBuffer, head: str) -> Reading[str]:
        """Read what follows a head, up to the mark that ends it."""
        found = _RECIPIENT.search(head)
        recipient = "user" if found is None else found[1]
        if recipient == "self":
            buffer.in_reasoning = True
            mark = yield from until(buffer, _ENDINGS, buffer.reasoning)
            buffer.in_reasoning = False
            return mark
        if recipient != "user" and buffer.tools:
            return (yield from self._calls.read(buffer, _ENDINGS))
        return (yield from until(buffer, _ENDINGS, buffer.content))

    def written(self, calls: Sequence[Called]) -> str:
        made = [f" to={called[0]}{MESSAGE}{self._calls.written([called])}" for called in calls]
        return f"{NEXT}{_AGAIN}".join(made)

    def rules(self, tools: Sequence[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        """Calls after as many thoughts as the model wants."""
        made = TaggedRules(ATEM, token_of)
        said = RawStrings(NEXT, NEXT, self.delimiters, token_of, made.writer).matching({})
        text = self._text(token_of)
        section = ATEM.opening

        def call(tool: Tool) -> str:
            head = text(f" to={tool.name}{MESSAGE}{section}{ATEM.gap}{ATEM.call}")
            return f"{head} {made.call(tool)} {text(closing(section))}"

        lines = [
            f"calls: thought* {repeated('call', text(f'{NEXT}{_AGAIN}'), parallel=parallel)}",
            self._thought(token_of, said),
            f"told: {text(self.content_mark)} {said} {text(_AGAIN)}",
        ]
        return "\n".join(lines) + "\n" + tool_rules(tools, call) + made.writer.text

    def free_rules(
        self, tools: Sequence[Tool], token_of: TokenOf, reasoning: Sequence[str], *, parallel: bool
    ) -> str:
        del reasoning
        final = f"{super().content_rule(token_of)} /(?s:.+)/? {self._text(token_of)(END)}?"
        return f"start: (thought | told)* (calls | {final})\n" + self.rules(
            held_tools(tools), token_of, parallel=parallel
        )

    def content_rule(self, token_of: TokenOf) -> str:
        return f"thought* {super().content_rule(token_of)}"

    def reasoning_rules(self, token_of: TokenOf) -> str:
        writer = RuleWriter("part")
        said = RawStrings(NEXT, NEXT, self.delimiters, token_of, writer).matching({})
        return f"before: {self.content_rule(token_of)}\n{self._thought(token_of, said)}\n{writer.text}"

    def _thought(self, token_of: TokenOf, said: str) -> str:
        """The rule of a message to itself. said: the symbol of its text."""
        text = self._text(token_of)
        return f"thought: {text(f' to=self{MESSAGE}')} {said} {text(_AGAIN)}"

    def _text(self, token_of: TokenOf) -> Callable[[str], str]:
        """A function that turns a text into symbols."""
        return lambda text: symbols(text, self.delimiters, token_of)
