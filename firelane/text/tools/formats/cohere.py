"""Cohere's Command R7B and its mixture of experts: calls are a JSON list between <|START_ACTION|> and
<|END_ACTION|>, and an answer stands between marks, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from firelane.text.tools.call_rules import (
    TokenOf,
    inline_arguments,
    mark_symbol,
    quoted,
    repeated,
    tool_rules,
)
from firelane.text.tools.family import Called
from firelane.text.tools.json_calls.json_list import JsonList
from firelane.text.tools.tool import Tool

ACTION = ("<|START_ACTION|>", "<|END_ACTION|>")
TEXT = ("<|START_TEXT|>", "<|END_TEXT|>")
RESPONSE = ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
_NUMBER = "/[0-9]{1,4}/"
_ID, _NAME, _ARGUMENTS = '{"tool_call_id": "', '", "tool_name": ', ', "parameters": '


class Cohere(JsonList):
    """newer: the answer's marks are TEXT instead of RESPONSE. Both are read."""

    def __init__(self, *, newer: bool) -> None:
        super().__init__("cohere", *ACTION, around=(*RESPONSE, *TEXT))
        self.delimiters = (*ACTION, *self.around)
        self.content_mark = (TEXT if newer else RESPONSE)[0]

    def written(self, calls: Sequence[Called]) -> str:
        made = [
            f"    {_ID}{i}{_NAME}{json.dumps(name)}{_ARGUMENTS}{json.dumps(arguments, ensure_ascii=False)}}}"
            for i, (name, arguments) in enumerate(calls)
        ]
        return f"{ACTION[0]}[\n" + ",\n".join(made) + f"\n]{ACTION[1]}"

    def rules(self, tools: Sequence[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        def call(tool: Tool) -> str:
            head = quoted(f"{_NAME}{json.dumps(tool.name)}{_ARGUMENTS}")
            return f"{quoted(f'    {_ID}')} {_NUMBER} {head} {inline_arguments(tool)} {quoted('}')}"

        listed = repeated("call", quoted(",\n"), parallel=parallel)
        first, last = (mark_symbol(mark, token_of) for mark in ACTION)
        block = f"{quoted(chr(10))} {listed} {quoted(f'{chr(10)}]')} {last}"
        return f'calls: {first} "[" block\nblock: {block}\n' + tool_rules(tools, call)
