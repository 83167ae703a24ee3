"""Answers with calls: a line with the name of a family of formats, a letter for the way, then the text. It
gives the same content, reasoning and calls in one piece, letter by letter and in any pieces."""

from __future__ import annotations

from firelane.text.chat.reasoning import MARKS, with_reasoning
from firelane.text.deltas import CallArguments, CallStart, Content, Delta, Reasoning
from firelane.text.parsers import TOOL_PARSERS
from firelane.text.tools.families import named_family
from firelane.text.tools.stream_buffer import OutputParser, Parser, StreamBuffer
from firelane.text.tools.tool import Tool
from fuzz.pieces import pieces
from fuzz.target import Target

NAMES = tuple(name for name in TOOL_PARSERS if name not in ("auto", "none"))
FAMILIES = tuple(map(named_family, NAMES))
SCHEMA = {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}
TOOLS = {"f": Tool("f"), "plain": Tool("plain", None, SCHEMA)}
THINKS = 1
Read = tuple[str, str, list[tuple[str, str]]]
"""Content, reasoning, and the name and the arguments of each call."""


def run(data: bytes) -> None:
    name, _, rest = data.partition(b"\n")
    at = NAMES.index(name.decode()) if name.decode(errors="replace") in NAMES else sum(name) % len(NAMES)
    way, text = (rest[0] if rest else 0), rest[1:].decode(errors="replace")
    thinks = bool(way & THINKS) and not FAMILIES[at].reads_reasoning
    parse: Parser = FAMILIES[at].parse
    if thinks:
        marks = MARKS.get(NAMES[at], MARKS["think"])
        parse = with_reasoning(parse, marks, FAMILIES[at].openings)

    def read(parts: list[str]) -> Read:
        return joined(
            OutputParser(StreamBuffer(lambda: "id", tools=TOOLS, in_reasoning=thinks), parse), parts
        )

    whole = read([text])
    for size in (1, 2 + (way >> 1) % 16):
        assert read(pieces(text, size)) == whole, f"pieces of {size} letters differ"


def joined(parser: OutputParser, parts: list[str]) -> Read:
    """Return what the parser reads from a text in these parts."""
    return _joined([delta for part in parts for delta in parser.push(part)] + parser.flush())


def _joined(deltas: list[Delta]) -> Read:
    content = "".join(delta.text for delta in deltas if isinstance(delta, Content))
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, Reasoning))
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        if isinstance(delta, CallStart):
            assert delta.index == len(calls)
            calls.append((delta.name, ""))
        elif isinstance(delta, CallArguments):
            assert delta.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.text)
    return content, reasoning, calls


MARKED = sorted(
    {mark for family in FAMILIES for mark in (*family.openings, *family.delimiters, *family.around)}
)
TARGET = Target(
    run=run,
    most_bytes=1 << 9,
    limit_s=5.0,
    words=(
        *(mark.encode() for mark in MARKED),
        *(name.encode() + b"\n" for name in NAMES),
        *(b'{"name": "f", "arguments": {"s": "a"}}', b"<think>", b"</think>", b"plain(s='a', n=1)", b"[f()]"),
        *(
            b"<function=plain>",
            b"<parameter=s>",
            b"</parameter>",
            b"</function>",
            b'"parameters"',
            b"\\u00e9",
        ),
        *(
            b"\xf0\x9f\x94\xa5",
            b"functions.f:0",
            b'{"plain": {"n": 1}}',
            b"null",
            b"True",
            b'\\"',
            b"```json\n",
        ),
    ),
)
