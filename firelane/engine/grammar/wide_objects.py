"""Objects of very many optional fields, as a grammar whose cost for a token grows with their number, not with
its square.

The general form of a schema says of each field "this one or none, then the rest": hundreds of rules that all
begin at once. Here the fields lie in buckets. What may follow a field is a later one of its bucket, or a
later bucket: each field begins in one rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import Any, cast

FEWEST = 64
"""Optional fields of an object that is worth it."""
KNOWN = frozenset({"type", "properties", "required", "additionalProperties", "$defs", "definitions"})
NOTES = frozenset({"$schema", "title", "description", "default", "examples"})
"""Keys that constrain nothing."""
REFERENCE = re.compile(r'"\$ref": "(?!#/(?:\$defs|definitions)/)')
"""To what is not carried along with each value."""


def lark_of(schema: dict[str, Any], options: dict[str, Any]) -> str | None:
    """A Lark grammar of the same texts as a schema's with compact white space; None where that is no closed
    object of many optional fields, or says more of itself. options: of llguidance, for the fields' values.
    """
    if schema.get("type") != "object" or schema.get("additionalProperties") is not False:
        return None
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or set(schema) - KNOWN - NOTES:
        return None
    if not isinstance(required, list) or not all(isinstance(name, str) for name in cast(list[Any], required)):
        return None
    if REFERENCE.search(json.dumps(schema)) or not set(required) <= set(properties):
        return None
    if len(properties) - len(set(required)) < FEWEST:
        return None
    return _Writer(schema, options).write(properties, frozenset(required))


@dataclass
class _Writer:
    schema: dict[str, Any]
    options: dict[str, Any]
    rules: list[str] = field(default_factory=list[str])
    values: dict[str, str] = field(default_factory=dict[str, str])

    def write(self, properties: dict[str, Any], required: frozenset[str]) -> str:
        names = {name: self._rule(self._pair(name, value)) for name, value in properties.items()}
        parts = [(names[name], name in required) for name in properties]
        first = self._rest(_segments(parts))
        return "\n".join([f'start: "{{" {first} "}}"', *self.rules]) + "\n"

    def _rule(self, body: str) -> str:
        self.rules.append(f"r{len(self.rules)}: {body}")
        return f"r{len(self.rules) - 1}"

    def _pair(self, name: str, value: Any) -> str:
        key = json.dumps(json.dumps(name, ensure_ascii=False) + ":", ensure_ascii=False)
        return f"{key} {self._value(value)}"

    def _value(self, value: Any) -> str:
        """The rule of a value's schema, one for all fields that have it."""
        shared = {key: self.schema[key] for key in ("$defs", "definitions") if key in self.schema}
        if isinstance(value, dict):
            kept = {key: part for key, part in cast(dict[str, Any], value).items() if key not in NOTES}
            value = {**shared, **kept, "x-guidance": self.options}
        text = json.dumps(value, ensure_ascii=False)
        if text not in self.values:
            self.values[text] = self._rule(f"%json {text}")
        return self.values[text]

    def _rest(self, segments: Sequence[_Segment]) -> str:
        """From the first segment to the last, nothing written before; "" for nothing at all."""
        after, alone = "", ""
        for segment in reversed(segments):
            rule = segment.fields[0] if segment.is_required else self._some(segment.fields)
            begun = f"{rule} {after}".strip()
            if segment.is_required:
                alone = self._rule(begun)
                after = self._rule(f'"," {begun}')
            else:
                alone = self._rule(f"{begun} | {alone}" if alone else f"({begun})?")
                after = self._rule(f'("," {rule})? {after}'.strip())
        return alone

    def _some(self, fields: Sequence[str]) -> str:
        """At least one of some optional fields, in their order."""
        size = isqrt(len(fields)) + 1
        buckets = [fields[at : at + size] for at in range(0, len(fields), size)]
        return self._ordered([self._ordered(list(bucket)) for bucket in buckets])

    def _ordered(self, items: Sequence[str]) -> str:
        """At least one of `items`, in their order: of each, it and perhaps later ones."""
        later: list[str] = []
        tails: list[str] = []
        for item in reversed(items):
            tail = f'("," ({" | ".join(later)}))?' if later else ""
            later.insert(0, self._rule(f"{item} {tail}".strip()))
            tails.append(tail)
        return self._rule(" | ".join(later))


@dataclass(frozen=True)
class _Segment:
    """A required field, or optional ones in a row."""

    fields: tuple[str, ...]
    is_required: bool


def _segments(parts: Sequence[tuple[str, bool]]) -> list[_Segment]:
    segments: list[_Segment] = []
    for name, is_required in parts:
        if segments and not is_required and not segments[-1].is_required:
            segments[-1] = _Segment((*segments[-1].fields, name), False)
        else:
            segments.append(_Segment((name,), is_required))
    return segments
