"""Structural tags, read plainly: whether a whole text is one of a format."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema

Node = dict[str, Any]
GRAMMARS = {
    'start: /[0-9]+/ "," /[a-z]+/': r"[0-9]+,[a-z]+",
    'root ::= "go " ("up" | "down")': r"go (up|down)",
}
"""Grammars of the tests as regular expressions."""


def holds(node: Node, text: str) -> bool:
    return any(end == len(text) for end in Reader(text).read(node, 0, []))


class Reader:
    def __init__(self, text: str) -> None:
        self._text = text

    def read(self, node: Node, at: int, stops: Sequence[str]) -> Iterator[int]:
        """Yield where a text of the node that begins here may end. stops: texts that end free text."""
        yield from getattr(self, f"_{node['type']}")(node, at, stops)

    def _any_text(self, node: Node, at: int, stops: Sequence[str]) -> Iterator[int]:
        end = min(self._found(stops, at), default=len(self._text))
        if not any(one in self._text[at:end] for one in node.get("excludes", [])):
            yield end

    def _const_string(self, node: Node, at: int, _: Sequence[str]) -> Iterator[int]:
        if self._text.startswith(node["value"], at):
            yield at + len(node["value"])

    def _json_schema(self, node: Node, at: int, _: Sequence[str]) -> Iterator[int]:
        try:
            value, end = json.JSONDecoder().raw_decode(self._text, at)
            jsonschema.validate(value, node["json_schema"])
        except (ValueError, jsonschema.ValidationError):
            return
        yield end

    def _regex(self, node: Node, at: int, stops: Sequence[str]) -> Iterator[int]:
        """The first end that a stop follows, where there are some."""
        pattern = re.compile(node["pattern"])
        for end in range(at, len(self._text) + 1):
            if self._text.startswith(tuple(stops) or "", end) and pattern.fullmatch(self._text, at, end):
                yield end
                if stops:
                    return

    def _grammar(self, node: Node, at: int, _: Sequence[str]) -> Iterator[int]:
        yield from self._regex({"pattern": GRAMMARS[node["grammar"]]}, at, ())

    def _sequence(self, node: Node, at: int, stops: Sequence[str]) -> Iterator[int]:
        first, *rest = node["elements"]
        if not rest:
            yield from self.read(first, at, stops)
            return
        behind = [rest[0]["value"]] if rest[0]["type"] == "const_string" else []
        for end in self.read(first, at, behind):
            yield from self._sequence({"elements": rest}, end, stops)

    def _or(self, node: Node, at: int, stops: Sequence[str]) -> Iterator[int]:
        for part in node["elements"]:
            yield from self.read(part, at, stops)

    def _optional(self, node: Node, at: int, stops: Sequence[str]) -> Iterator[int]:
        yield at
        yield from self.read(node["content"], at, stops)

    def _plus(self, node: Node, at: int, _: Sequence[str]) -> Iterator[int]:
        found, waiting = set[int](), [at]
        while waiting:
            for end in self.read(node["content"], waiting.pop(), ()):
                if end not in found:
                    found.add(end)
                    waiting.append(end)
                    yield end

    def _star(self, node: Node, at: int, _: Sequence[str]) -> Iterator[int]:
        yield at
        yield from self._plus(node, at, ())

    def _tag(self, node: Node, at: int, stops: Sequence[str]) -> Iterator[int]:
        if not self._text.startswith(node["begin"], at):
            return
        ends = [node["end"]] if isinstance(node["end"], str) else node["end"]
        own = [end for end in ends if end]
        for behind in self.read(node["content"], at + len(node["begin"]), own or stops):
            yield from (behind + len(end) for end in ends if self._text.startswith(end, behind))

    def _tags(self, node: Node, at: int) -> Iterator[int]:
        for tag in node["tags"]:
            yield from self._tag(tag, at, [])

    def _triggered_tags(self, node: Node, at: int, stops: Sequence[str]) -> Iterator[int]:
        starts = self._tags(node, at) if node.get("at_least_one") else [at]
        for start in starts:
            if node.get("at_least_one") and node.get("stop_after_first"):
                yield start
            else:
                yield from self._free(node, start, stops)

    def _free(self, node: Node, at: int, stops: Sequence[str]) -> Iterator[int]:
        """A trigger is the start of one of the tags."""
        stop = min(self._found(stops, at), default=len(self._text))
        start = min(self._found(node["triggers"], at), default=len(self._text) + 1)
        if any(one in self._text[at : min(stop, start)] for one in node.get("excludes", [])):
            return
        if stop < start:
            yield stop
            return
        for end in self._tags(node, start):
            yield from [end] if node.get("stop_after_first") else self._free(node, end, stops)

    def _tags_with_separator(self, node: Node, at: int, _: Sequence[str]) -> Iterator[int]:
        if not node.get("at_least_one"):
            yield at
        for end in self._tags(node, at):
            yield end
            if not node.get("stop_after_first") and self._text.startswith(node["separator"], end):
                rest = {**node, "at_least_one": True}
                yield from self._tags_with_separator(rest, end + len(node["separator"]), ())

    def _found(self, marks: Sequence[str], at: int) -> list[int]:
        return [found for mark in marks if (found := self._text.find(mark, at)) >= 0]
