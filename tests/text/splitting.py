from __future__ import annotations

from collections.abc import Callable

from firelane.text.deltas import CallArguments, CallStart, Content, Delta, Reasoning
from firelane.text.tools.stream_buffer import OutputParser, Parser, StreamBuffer
from firelane.text.tools.tool import Tool

Joined = tuple[str, str, list[tuple[str, str]]]


def split(
    parse: Parser,
    pieces: list[str],
    *,
    known: tuple[str | Tool, ...] = ("f", "g"),
    in_reasoning: bool = False,
    limit: int = 0,
    end: bool = True,
) -> list[Delta]:
    tools = [one if isinstance(one, Tool) else Tool(one) for one in known]
    buffer = StreamBuffer(
        lambda: "id", tools={tool.name: tool for tool in tools}, in_reasoning=in_reasoning, max_calls=limit
    )
    splitter = OutputParser(buffer, parse)
    found: list[Delta] = []
    for piece in pieces:
        found += splitter.push(piece)
    return found + (splitter.flush() if end else [])


def joined(deltas: list[Delta]) -> Joined:
    """Content, reasoning, and (name, arguments) of the calls."""
    content = "".join(d.text for d in deltas if isinstance(d, Content))
    reasoning = "".join(d.text for d in deltas if isinstance(d, Reasoning))
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        if isinstance(delta, CallStart):
            assert delta.index == len(calls)
            calls.append((delta.name, ""))
        elif isinstance(delta, CallArguments):
            assert delta.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.text)
    return content, reasoning, calls


def cut(text: str, places: list[int]) -> list[str]:
    delimiters = sorted({place % (len(text) + 1) for place in places})
    return [text[a:b] for a, b in zip([0, *delimiters], [*delimiters, len(text)], strict=True)]


Make = Callable[[], Parser]
