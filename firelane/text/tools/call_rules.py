"""Parts of grammars of calls, in llguidance's Lark."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from firelane.text.schemas.constraints import single_line
from firelane.text.tools.tool import Tool

MAX_FORCED_CALLS = 16
TokenOf = Callable[[str], "int | None"]
"""The id of the special token of this name, None where it is plain text for the tokenizer."""
ANYTHING: dict[str, Any] = {"type": "object"}


def quoted(text: str) -> str:
    """A Lark literal."""
    return json.dumps(text)


def mark_symbol(mark: str, token_of: TokenOf) -> str:
    """A mark in a Lark rule: by its token where it is one, which no text could give."""
    token = token_of(mark)
    return quoted(mark) if token is None else f"<[{token}]>"


def first_token(text: str, marks: Sequence[str], token_of: TokenOf) -> tuple[str, int | None, str]:
    """Text before the first special token in `text`, the token, and what follows it; all of the text,
    None and "" where it has none of `marks` as a token.
    """
    found = [(text.index(mark), mark, token_of(mark)) for mark in marks if mark in text]
    known = [(at, -len(mark), mark, token) for at, mark, token in found if token is not None]
    if not known:
        return text, None, ""
    at, _, mark, token = min(known)
    return text[:at], token, text[at + len(mark) :]


def symbols(text: str, marks: Sequence[str], token_of: TokenOf) -> str:
    """A text in a Lark rule, of which `marks` may be tokens."""
    made: list[str] = []
    while text:
        before, token, text = first_token(text, marks, token_of)
        made += [quoted(before)] if before else []
        made += [] if token is None else [f"<[{token}]>"]
    return " ".join(made)


def tool_rules(tools: Sequence[Tool], call: Callable[[Tool], str]) -> str:
    """Rules `call` and `call0`, `call1`...; call: the right side of the rule of one tool's call."""
    lines = ["call: " + " | ".join(f"call{i}" for i in range(len(tools)))]
    lines += [f"call{i}: {call(tool)}" for i, tool in enumerate(tools)]
    return "\n".join(lines) + "\n"


def inline_arguments(tool: Tool) -> str:
    """The JSON of the tool's arguments, within a rule."""
    return f"%json {json.dumps(single_line(tool.schema()))}"


def repeated(symbol: str, separator: str, *, parallel: bool) -> str:
    """The symbol as often as the request allows. separator: a symbol, or ""."""
    return f"{symbol} ({separator} {symbol}){{0,{MAX_FORCED_CALLS - 1}}}" if parallel else symbol


def held_tools(tools: Sequence[Tool]) -> list[Tool]:
    """The tools as a free answer may call them: any object suits one that is not strict."""
    return [tool if tool.strict else replace(tool, parameters=ANYTHING) for tool in tools]


def free_start(opening: str, marks: Sequence[str], reasoning: Sequence[str], token_of: TokenOf) -> str:
    """Rules of an answer that may be text, reasoning, and blocks of calls. marks: those of the format."""
    before, token, after = first_token(opening, marks, token_of)
    thoughts = [
        symbols(mark, (mark, *marks), token_of)
        for mark in reasoning
        if first_token(mark, (mark, *marks), token_of)[1] is not None
    ]
    pieces = ["free_text", *thoughts, "opened block"]
    text = f"start: ({' | '.join(pieces)})*\nfree_text: /(?s:.+)/\n"
    if token is None:
        return f"{text}opened: free_head\nfree_head[lazy]: /(?s:.*)/ {quoted(opening)}\n"
    head = f"/(?s:.*)/ {quoted(before)}" if before else ""
    rest = symbols(after, marks, token_of)
    return f"{text}opened: {'FREE_HEAD ' if head else ''}<[{token}]> {rest}\n" + (
        f"FREE_HEAD: {head}\n" if head else ""
    )


def unmarked_start(first: str, reasoning: Sequence[str], token_of: TokenOf) -> str:
    """Rules of an answer that is calls, or text that does not begin with their first character: llguidance
    has to know at once. reasoning: the marks around what may stand before it.
    """
    start = f"start: calls | free_text\nfree_text: /\\s*[^\\s\\{first}](?s:.*)/\n"
    tokens = [token for mark in reasoning if (token := token_of(mark)) is not None]
    if len(tokens) < 2:
        return start
    thought = f"thought: (<[{tokens[0]}]> /(?s:.+)/? | free_text?) <[{tokens[1]}]> /\\s+/?\n"
    return start.replace("start: calls | free_text", "start: thought? (calls | free_text)") + thought
