"""Tools of a request: a line with the name of a family of formats, then the JSON schema of a tool's
parameters. It is made into rules, or refused; a call of the tool is read in the same way however it comes."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from firelane.api.reading.schemas import check_schema
from firelane.errors import RequestError
from firelane.text.parsers import TOOL_PARSERS
from firelane.text.tools.families import named_family
from firelane.text.tools.stream_buffer import OutputParser, StreamBuffer
from firelane.text.tools.tool import Tool
from fuzz.json_mutator import mutate_json
from fuzz.pieces import pieces
from fuzz.target import Target
from fuzz.targets.tool_calls import Read, joined

NAMES = tuple(name for name in TOOL_PARSERS if name not in ("auto", "none"))
CALL = ("f", {"a": "x<é", "b": 1, "c": [True, None, {"d": 0.5}]})
THINK = ("<think>", "</think>")


def run(data: bytes) -> None:
    line, _, text = data.partition(b"\n")
    name = line.decode(errors="replace")
    family = named_family(name if name in NAMES else NAMES[sum(line) % len(NAMES)])
    try:
        schema: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if not isinstance(schema, dict):
        return
    check_schema(schema, "tools.parameters")
    tool, before = Tool("f", None, schema, strict=True), msgspec.json.encode(schema)
    written = family.written([CALL])

    def read(parts: list[str]) -> Read:
        return joined(OutputParser(StreamBuffer(lambda: "id", tools={"f": tool}), family.parse), parts)

    assert read(pieces(written, 1)) == read([written])
    try:
        family.free_rules([tool], lambda _: None, THINK, parallel=True)
        family.rules([tool], lambda mark: len(mark), parallel=False)
    finally:
        assert msgspec.json.encode(schema) == before, "the schema itself was changed"


def mutate(data: bytes, draw: random.Random) -> bytes | None:
    if draw.random() < 0.1:
        return draw.choice(NAMES).encode() + data[data.find(b"\n") :]
    return mutate_json(data, draw, prefix=data.find(b"\n") + 1)


TARGET = Target(run=run, mutate=mutate, refusals=(RequestError,))
