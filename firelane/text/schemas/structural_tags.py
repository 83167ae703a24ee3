"""Structural tags of requests: checked, and as the tree that the engine is told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec

from firelane.api.decode import BodyDecoder
from firelane.api.formats import ResponseFormat
from firelane.api.structural_tags import StructuralTag
from firelane.errors import RequestError
from firelane.wire.structural_tags import Node, ends, is_unlimited

MAX_DEPTH = 16
MAX_NODES = 1024
GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_DECODER = BodyDecoder[StructuralTag](StructuralTag)
Held = Callable[[dict[str, Any], str], dict[str, Any]]
"""A function of a schema and its place that gives the schema as an answer is held to it."""


def tags_of_text(text: str, where: str) -> StructuralTag:
    """The structural tag of a JSON text. Raises RequestError."""
    try:
        return _DECODER.decode(text.encode("utf-8", "surrogatepass"))
    except RequestError as error:
        param = f"{where}.{error.param}" if error.param else where
        raise RequestError(f"`{where}`: {error}", param=param, code=error.code) from None


def tags_text(asked: StructuralTag | ResponseFormat, where: str, held: Held) -> str:
    """The tree as JSON. where: names what was asked for in errors. Raises RequestError on what no answer can
    be held to."""
    if asked.format is not None and (asked.structures is not None or asked.triggers is not None):
        raise RequestError(
            f"`{where}.format` says all: leave `structures` and `triggers` out", param=f"{where}.format"
        )
    if asked.format is None:
        node, place = _older(asked, where), where
    else:
        node, place = _plain(asked.format, f"{where}.format"), f"{where}.format"
    _Checks(held, older=asked.format is None).check(node, place, 1)
    return json.dumps(node, ensure_ascii=False)


def schemas_in(asked: StructuralTag | ResponseFormat) -> list[dict[str, Any]]:
    """The schemas in a checked structural tag."""
    found = [one.schema for one in asked.structures or []]
    waiting: list[Node] = [] if asked.format is None else [msgspec.to_builtins(asked.format)]
    while waiting:
        node = waiting.pop()
        found += [node["json_schema"]] if node["type"] == "json_schema" else []
        inner = node.get("content")
        waiting += [*node.get("elements", []), *node.get("tags", []), *([inner] if inner else [])]
    return found


def _older(asked: StructuralTag | ResponseFormat, where: str) -> Node:
    for name, given in (("structures", asked.structures), ("triggers", asked.triggers)):
        if not given:
            raise RequestError(
                f"`{where}.{name}` is missing: give one or more, or a `format`",
                param=f"{where}.{name}",
                code="missing_parameter",
            )
    tags: list[Node] = [
        {
            "type": "tag",
            "begin": one.begin,
            "content": {"type": "json_schema", "json_schema": one.schema},
            "end": one.end,
        }
        for one in asked.structures or []
    ]
    return {
        "type": "triggered_tags",
        "triggers": asked.triggers,
        "tags": tags,
        "at_least_one": False,
        "stop_after_first": False,
        "excludes": [],
    }


def _plain(given: Any, where: str) -> Node:
    try:
        return msgspec.to_builtins(given)
    except RecursionError:
        raise _too_deep(where) from None


def _too_deep(where: str) -> RequestError:
    return RequestError(
        f"`{where}` is nested more than {MAX_DEPTH} levels deep: use a flatter one", param=where
    )


class _Checks:
    """Checks one tree, and puts schemas and grammars in it into the engine's form. older: its tags were given
    as `structures`."""

    def __init__(self, held: Held, *, older: bool) -> None:
        self._held, self._older = held, older
        self._count = 0

    def check(self, node: Node, where: str, depth: int) -> None:
        self._count += 1
        if depth > MAX_DEPTH:
            raise _too_deep(where)
        if self._count > MAX_NODES:
            raise RequestError(f"`{where}`: more than {MAX_NODES} formats: use fewer", param=where)
        kind = node["type"]
        if kind == "json_schema":
            place = f"{where}.{'schema' if self._older else 'json_schema'}"
            node["json_schema"] = self._held(node["json_schema"], place)
        elif kind == "grammar":
            node["syntax"] = "gbnf" if GBNF_RULE.search(node["grammar"]) else "lark"
        elif kind == "tag":
            self._tag(node, where, depth)
        elif kind in ("optional", "star", "plus"):
            self._repeated(node, where, depth)
        elif "elements" in node:
            self._elements(node, where, depth)
        elif "tags" in node:
            self._tags(node, where, depth)

    def _tag(self, node: Node, where: str, depth: int) -> None:
        place = where if self._older else f"{where}.content"
        self.check(node["content"], place, depth + 1)
        for end in ends(node):
            _check_end(end, node["content"], f"{where}.end")

    def _repeated(self, node: Node, where: str, depth: int) -> None:
        self.check(node["content"], f"{where}.content", depth + 1)
        if node["type"] != "optional" and is_unlimited(node["content"]):
            raise _endless(f"{where}.content")

    def _elements(self, node: Node, where: str, depth: int) -> None:
        parts: list[Node] = node["elements"]
        for i, part in enumerate(parts):
            self.check(part, f"{where}.elements[{i}]", depth + 1)
        if node["type"] == "or":
            return
        for i, (part, behind) in enumerate(pairwise(parts)):
            if is_unlimited(part) and behind["type"] != "const_string":
                raise _endless(f"{where}.elements[{i}]")
            if behind["type"] == "const_string":
                _check_end(behind["value"], part, f"{where}.elements[{i + 1}].value")

    def _tags(self, node: Node, where: str, depth: int) -> None:
        names = f"{where}.{'structures' if self._older else 'tags'}"
        for i, tag in enumerate(node["tags"]):
            place = f"{names}[{i}]"
            if not tag["begin"]:
                raise RequestError(f"`{place}.begin` is empty: give a text", param=f"{place}.begin")
            self.check(tag, place, depth + 1)
            if is_unlimited(tag):
                raise _endless(f"{place}.end")
        if node["type"] == "triggered_tags":
            _check_triggers(node, names, f"{where}.triggers")


def _check_end(end: str, node: Node, where: str) -> None:
    """Raises RequestError where a text cannot end the free text that a node ends in."""
    for trigger in _triggers_at_end(node):
        if end in trigger or trigger in end:
            raise RequestError(
                f"`{where}` and the trigger {trigger!r} have each other in them: one of them could never be "
                "written; make them differ",
                param=where,
            )


def _triggers_at_end(node: Node) -> list[str]:
    """Triggers of the free text that a node ends in."""
    if node["type"] == "triggered_tags":
        return node["triggers"]
    last: list[Node] = node["elements"] if node["type"] == "or" else node.get("elements", [])[-1:]
    if node["type"] == "optional" or (node["type"] == "tag" and not ends(node)):
        last = [node["content"]]
    return [trigger for part in last for trigger in _triggers_at_end(part)]


def _endless(where: str) -> RequestError:
    return RequestError(
        f"`{where}`: free text has no end here: give the tag around it an `end`, or a const_string behind it",
        param=where,
    )


def _check_triggers(node: Node, tags: str, triggers: str) -> None:
    """Raises RequestError where a tag could not be begun, or a trigger not be gone on from."""
    begins = [tag["begin"] for tag in node["tags"]]
    known: list[str] = node["triggers"]
    for i, begin in enumerate(begins):
        if not any(begin.startswith(trigger) for trigger in known):
            raise RequestError(
                f"`{tags}[{i}].begin` starts with none of `triggers`", param=f"{tags}[{i}].begin"
            )
    for i, trigger in enumerate(known):
        if not any(begin.startswith(trigger) for begin in begins):
            raise RequestError(f"`{triggers}[{i}]` begins no tag: leave it out", param=f"{triggers}[{i}]")
        if any(other in trigger[1:] for other in known):
            raise RequestError(
                f"`{triggers}[{i}]` has another trigger in it, behind its start: leave one of them out",
                param=f"{triggers}[{i}]",
            )
