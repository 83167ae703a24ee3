"""Schemas, patterns and grammars that mean harm, with the statuses that are right for them."""

from __future__ import annotations

from typing import Any

REFUSED, TAKEN = frozenset({400}), frozenset({200})
EITHER = frozenset({200, 400})


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


SCHEMAS: dict[str, tuple[Any, frozenset[int]]] = {
    "number": (1, REFUSED),
    "list": ([], REFUSED),
    "type": ({"type": "nonsense"}, EITHER),
    "type of number": ({"type": 5}, EITHER),
    "never": ({"not": {}}, EITHER),
    "false": ({"type": "object", "properties": {"a": False}, "required": ["a"]}, EITHER),
    "own reference": ({"$ref": "#"}, EITHER),
    "loop": ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, EITHER),
    "missing reference": ({"$ref": "#/$defs/none"}, EITHER),
    "remote reference": ({"$ref": "http://127.0.0.1:1/schema.json"}, EITHER),
    "file reference": ({"$ref": "file:///etc/passwd"}, EITHER),
    "recursive": ({"type": "object", "properties": {"a": {"$ref": "#"}}}, EITHER),
    "deep": (nested(60), EITHER),
    "very deep": (nested(400), EITHER),
    "wide": ({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(3000)}}, EITHER),
    "all required": ({"type": "object", "required": [f"p{i}" for i in range(2000)]}, EITHER),
    "enum": ({"enum": [f"word {i}" for i in range(4000)]}, EITHER),
    "exponential": ({"type": "string", "pattern": "^(a+)+$"}, EITHER),
    "nested repeats": ({"type": "string", "pattern": "((((a{9}){9}){9}){9}){9}"}, EITHER),
    "look-ahead": ({"type": "string", "pattern": "(?=a)b"}, EITHER),
    "broken pattern": ({"type": "string", "pattern": "("}, EITHER),
    "long": ({"type": "string", "minLength": 10**6, "maxLength": 10**9}, EITHER),
    "many items": ({"type": "array", "items": {"type": "integer"}, "minItems": 10**6}, EITHER),
    "min over max": ({"type": "integer", "minimum": 5, "maximum": 1}, EITHER),
    "any of many": ({"anyOf": [{"type": "object", "properties": {f"p{i}": {}}} for i in range(200)]}, EITHER),
    "all of": ({"allOf": [nested(20)] * 20}, EITHER),
    "x-guidance": ({"type": "object", "x-guidance": {"lazy": 1, "item_separator": ("(" * 50)}}, EITHER),
    "bad words": ({"properties": 1, "required": 2, "items": 3, "enum": 4, "type": None}, EITHER),
}
PATTERNS = {
    "open": "(",
    "class": "[z-a]",
    "repeat": "*",
    "counts": "a{5,2}",
    "large": "a{1000000}",
    "exponential": "(a|aa)+b",
    "nested": "(((((a{50}){50}){50}){50}){50})",
    "back reference": r"(a)\1",
    "look-behind": "(?<=a)b",
    "classes": r"[\p{L}\p{N}]{1,2000}",
    "long": "a" * 16_000,
    "too long": "a" * 20_000,
    "alternatives": "|".join(f"w{i}" for i in range(3000)),
    "nothing": "[^\\s\\S]",
}
GRAMMARS = {
    "empty start": "start:",
    "no start": "rule: /a/",
    "left recursion": "start: start /a/ | /a/",
    "endless": "start: start",
    "undefined": "start: nothing",
    "not a grammar": "hello world",
    "gbnf": 'root ::= root "a" | "a"',
    "gbnf broken": "root ::= (",
    "many rules": "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(60)) + "\nr60: /a/",
    "too long": "start: " + '"a" ' * 40_000,
}
