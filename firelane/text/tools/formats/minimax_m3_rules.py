"""Grammars of arguments with a tag around each part, at every depth."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from firelane.text.tools.call_rules import TokenOf, quoted, symbols
from firelane.text.tools.parameters import NOTES, Schema, count, kinds, refused, resolved
from firelane.text.tools.raw_text import RawStrings, RuleWriter
from firelane.text.tools.schema_rules import (
    cases_of,
    closed_root,
    json_value,
    named_fields,
    other_fields,
    strings_of,
)
from firelane.text.tools.tool import Tool

KEY = "[A-Za-z_][A-Za-z0-9_.-]{0,63}"
ITEM = "item"
ARRAY_KEYS = frozenset({"type", "items", "minItems", "maxItems"})
SCALARS = ("number", "integer", "boolean", "null")


class NestedTags:
    """Writes the rules of one request's arguments. mark: before every tag. A schema that is referred to is a
    rule of its own for each name that it has, so that it may refer to itself.
    """

    def __init__(self, mark: str, marks: Sequence[str], token_of: TokenOf) -> None:
        self._mark, self._marks, self._token_of = mark, marks, token_of
        self._writer = RuleWriter("part")
        self._referred: dict[tuple[str, str], str] = {}
        self._rules: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._rules) + self._writer.text

    def arguments(self, tool: Tool) -> str:
        """Symbols of a tool's arguments."""
        self._referred = {}
        schema, root = closed_root(tool)
        return self._object(schema, root)

    def _object(self, schema: Schema, root: Schema) -> str:
        fields = named_fields(schema, "tools")
        parts: list[str] = []
        for name, (value, required) in fields.items():
            rule = self._writer.rule(self._part(_checked(name), value, root))
            parts.append(rule if required else f"{rule}?")
        more = other_fields(schema)
        if more is not None:
            parts.append(f"{self._others(sorted(fields), more)}*")
        return " ".join(parts)

    def _others(self, taken: list[str], schema: Schema) -> str:
        """A part of any name but those, and of any value: no grammar ties a closing tag to a free name."""
        if set(schema) - NOTES:
            raise refused(
                "a schema as `additionalProperties` cannot be held in this model's calls: name the "
                "parameters under `properties`"
            )
        said = RawStrings(f"{self._mark}</", f"{self._mark}</", self._marks, self._token_of, self._writer)
        key, any_key = self._key(taken), self._key([])
        inner = f"any{len(self._rules)}"
        self._rules.append(
            f'{inner}: {self._tag("<")} {any_key} ">" ({said.matching({})} | {inner}+ {self._tag("</")}) '
            f'{any_key} ">"\n'
        )
        value = f"({said.matching({})} | {inner}+ {self._tag('</')})"
        return self._writer.rule(f'{self._tag("<")} {key} ">" {value} {key} ">"')

    def _key(self, taken: list[str]) -> str:
        but = f" & ~/({'|'.join(taken)})/" if taken else ""
        return self._writer.terminal(f"/{KEY}/{but}")

    def _part(self, name: str, schema: Schema, root: Schema) -> str:
        return f"{self._tag(f'<{name}>')} ({self._value(name, schema, root)})"

    def _value(self, name: str, schema: Schema, root: Schema) -> str:
        """A value with its closing tag. Where it may be a string, it is read as a text: then it has no
        parts.
        """
        cases = cases_of(schema, root, follow=False)
        is_text = len(cases) > 1 and "string" in kinds(schema, root)
        kept = [case for case in cases if not (is_text and _has_parts(case, root))]
        return " | ".join(one for case in kept for one in self._case(name, case, root, mixed=len(cases) > 1))

    def _case(self, name: str, case: Schema, root: Schema, *, mixed: bool) -> Iterator[str]:
        close = f"{self._mark}</{name}>"
        strings = RawStrings(close, close, self._marks, self._token_of, self._writer)
        listed, kind = strings_of(case), case.get("type")
        if isinstance(case.get("$ref"), str):
            yield self._reference(name, case, root)
        elif listed is not None:
            yield from map(strings.literal, listed[0])
            yield from (f"{quoted(json.dumps(value))} {strings.end}" for value in listed[1])
        elif kind == "string":
            yield strings.matching(case, no_json=mixed)
        elif kind in SCALARS:
            yield f"{json_value(case, root, self._writer)} {strings.end}"
        elif kind == "array":
            yield f"{self._array(case, root)} {strings.end}"
        elif kind == "object" or "properties" in case:
            yield f"{self._object(case, root)} {strings.end}"
        elif set(case) - NOTES:
            said = ", ".join(sorted(set(case) - NOTES))[:80]
            raise refused(
                f"a value with {said} and no type cannot be held in this model's calls: give it one"
            )
        else:
            yield strings.matching({})

    def _array(self, schema: Schema, root: Schema) -> str:
        more = sorted(set(schema) - ARRAY_KEYS - NOTES)
        if more:
            raise refused(f"'{more[0][:40]}' of an array cannot be held in this model's calls: leave it out")
        item = self._writer.rule(self._part(ITEM, schema.get("items") or {}, root))
        fewest, most = count(schema, "minItems") or 0, count(schema, "maxItems")
        return "" if most == 0 else f"{item}{{{fewest},{'' if most is None else most}}}"

    def _reference(self, name: str, schema: Schema, root: Schema) -> str:
        target = (schema["$ref"], name)
        if target not in self._referred:
            at = len(self._rules)
            self._referred[target] = f"value{at}"
            self._rules.append("")
            self._rules[at] = f"value{at}: {self._value(name, resolved(schema, root), root)}\n"
        return self._referred[target]

    def _tag(self, tag: str) -> str:
        return symbols(self._mark + tag, self._marks, self._token_of)


def _has_parts(case: Schema, root: Schema) -> bool:
    return bool(kinds(case, root) & {"array", "object"})


def _checked(name: str) -> str:
    if not name or any(c.isspace() or c in '<>/"' for c in name):
        raise refused(
            f"a parameter named '{name[:40]}' has no form in this model's calls: name it with "
            "letters, digits and underscores"
        )
    return name
