"""Grammars of Gemma 4's values."""

from __future__ import annotations

import json
from collections.abc import Sequence

from firelane.text.tools.call_rules import TokenOf, quoted, symbols
from firelane.text.tools.parameters import NOTES, Schema, count, refused, resolved
from firelane.text.tools.raw_text import RawStrings, RuleWriter
from firelane.text.tools.schema_rules import (
    cases_of,
    closed_root,
    json_value,
    named_fields,
    other_fields,
    sequence,
    strings_of,
)
from firelane.text.tools.tool import Tool

KEY = "[A-Za-z_][A-Za-z0-9_.-]{0,63}"
SCALARS = ("number", "integer", "boolean", "null")
ARRAY_KEYS = frozenset({"type", "items", "minItems", "maxItems"})


class Gemma4Values:
    """Writes the rules of one request's values. A schema that is referred to is a rule of its own, so that
    it may refer to itself.
    """

    def __init__(self, marks: Sequence[str], quote: str, token_of: TokenOf) -> None:
        self._writer = RuleWriter("part")
        self._quote = symbols(quote, marks, token_of)
        self._strings = RawStrings(quote, quote, marks, token_of, self._writer)
        self._referred: dict[str, str] = {}
        self._rules: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._rules) + self._writer.text

    def call(self, tool: Tool) -> str:
        """The right side of the rule of a tool's call."""
        self._referred = {}
        schema, root = closed_root(tool)
        return f"{quoted(f'call:{tool.name}')} {self._object(schema, root)}"

    def _object(self, schema: Schema, root: Schema) -> str:
        fields = named_fields(schema, "tools")
        items = [
            (f"{quoted(_checked(name) + ':')} {self._value(value, root)}", required)
            for name, (value, required) in fields.items()
        ]
        more = other_fields(schema)
        if more is not None and not items:
            pair = self._writer.rule(f"{self._writer.terminal(f'/{KEY}:/')} {self._value(more, root)}")
            return f'"{{" ({pair} ("," {pair})*)? "}}"'
        return f'"{{" {sequence(items, quoted(","), self._writer)} "}}"'

    def _array(self, schema: Schema, root: Schema) -> str:
        more = sorted(set(schema) - ARRAY_KEYS - NOTES)
        if more:
            raise refused(f"'{more[0][:40]}' of an array cannot be held in this model's calls: leave it out")
        item = self._writer.rule(self._value(schema.get("items") or {}, root))
        fewest, most = count(schema, "minItems") or 0, count(schema, "maxItems")
        if most == 0:
            return '"[]"'
        rest = f'("," {item}){{{max(fewest - 1, 0)},{"" if most is None else most - 1}}}'
        return f'"[" {item} {rest} "]"' if fewest else f'"[" ({item} {rest})? "]"'

    def _value(self, schema: Schema, root: Schema) -> str:
        return f"({' | '.join(self._case(case, root) for case in cases_of(schema, root, follow=False))})"

    def _reference(self, schema: Schema, root: Schema) -> str:
        target = schema["$ref"]
        if target not in self._referred:
            at = len(self._rules)
            self._referred[target] = f"value{at}"
            self._rules.append("")
            self._rules[at] = f"value{at}: {self._value(resolved(schema, root), root)}\n"
        return self._referred[target]

    def _case(self, case: Schema, root: Schema) -> str:
        if isinstance(case.get("$ref"), str):
            return self._reference(case, root)
        listed = strings_of(case)
        if listed is not None:
            strings = [f"{self._quote} {self._strings.literal(text)}" for text in listed[0]]
            return f"({' | '.join([*strings, *(quoted(json.dumps(value)) for value in listed[1])])})"
        kind = case.get("type")
        if kind == "string":
            return f"{self._quote} {self._strings.matching(case)}"
        if kind in SCALARS:
            return json_value(case, root, self._writer)
        if kind == "array":
            return self._array(case, root)
        if kind == "object" or "properties" in case:
            return self._object(case, root)
        if set(case) - NOTES:
            raise refused(
                f"a value with {', '.join(sorted(set(case) - NOTES))[:80]} and no type cannot be "
                "held in this model's calls: give it one"
            )
        scalars = json_value({"type": list(SCALARS)}, root, self._writer)
        return f"({self._quote} {self._strings.matching({})} | {scalars})"


def _checked(name: str) -> str:
    if not name or any(c in ' \t\n,:{}[]"<>' for c in name):
        raise refused(
            f"a parameter named '{name[:40]}' has no form in this model's calls: name it with "
            "letters, digits and underscores"
        )
    return name
