"""Grammars of calls with a tag around each parameter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from firelane.text.tools.call_rules import TokenOf, quoted, repeated, symbols, tool_rules
from firelane.text.tools.parameters import KINDS, NOTES, Schema, refused
from firelane.text.tools.raw_text import RawStrings, RuleWriter
from firelane.text.tools.schema_rules import (
    cases_of,
    closed_root,
    json_value,
    named_fields,
    other_fields,
    strings_of,
)
from firelane.text.tools.tagged_calls.tags import NUMBER, Tags, closing
from firelane.text.tools.tool import Tool

KEY = "[A-Za-z_][A-Za-z0-9_.-]{0,63}"
"""Names of parameters that a schema allows without naming them."""
OTHER_KINDS = ("number", "boolean", "null", "object", "array")
"""JSON types beside strings."""
PLACE = "/[1-9][0-9]?/"
"""The place of a call among those of its section."""


class TaggedRules:
    """Writes the grammar of one request. Parameters come in the order in which the schema names them."""

    def __init__(self, tags: Tags, token_of: TokenOf) -> None:
        self._tags = tags
        self._token_of = token_of
        self.writer = RuleWriter("part")
        self._gap = quoted(tags.gap) if tags.gap else ""
        self._line = "\n" if tags.lines else ""
        close = tags.value_close
        self._strings = RawStrings(self._line + close, close, tags.delimiters, token_of, self.writer)

    def write(self, tools: Sequence[Tool], *, parallel: bool) -> str:
        tags = self._tags
        if not tags.sections:
            calls = repeated(f"{self._symbols(tags.call)} block", quoted("\n"), parallel=parallel)
            return f"calls: {calls}\nblock: call\n{tool_rules(tools, self._begun_call)}{self.writer.text}"
        section = tags.sections[0]
        several = parallel and tags.many
        first = f"{self._gap} " if tags.call else ""
        block = f"{first}{repeated('call', '', parallel=several)} {self._symbols(closing(section))}"
        opened = f"{self._symbols(tags.before + section)} block"
        calls = repeated(opened, quoted("\n"), parallel=parallel and not tags.many)
        rules = tool_rules(tools, self._begun_call)
        return f"calls: {calls}\nblock: {block}\n{rules}{self.writer.text}"

    def _begun_call(self, tool: Tool) -> str:
        """With the mark before the name, which is the opening where there is no section."""
        call = self.call(tool)
        return f"{self._symbols(self._tags.call)} {call}" if self._tags.sections and self._tags.call else call

    def call(self, tool: Tool) -> str:
        """A call from its name on."""
        tags = self._tags
        schema, root = closed_root(tool)
        head, number, end = tags.call_end.partition(NUMBER)
        parts = [self._symbols(f"{tool.name}{head}")] if number else []
        parts += [PLACE, self._symbols(end + tags.gap)] if number else []
        parts = parts or [self._symbols(f"{tool.name}{tags.call_end}{tags.gap}")]
        for name, (value, required) in named_fields(schema, tool.name).items():
            self._check(name)
            rule = self.writer.rule(" | ".join(self._parameter(name, value, root)))
            parts.append(rule if required else f"{rule}?")
        more = other_fields(schema)
        if more is not None:
            taken = sorted(named_fields(schema, tool.name))
            parts.append(self.writer.rule(" | ".join(self._other(taken, more, root))) + "*")
        if tags.call:
            parts.append(self._symbols(tags.call_close + tags.gap))
        return " ".join(parts)

    def _parameter(self, name: str, schema: Schema, root: Schema) -> Iterator[str]:
        for kind, value in self._values(schema, root):
            mark = self._tags.key_mark(name, kind) + self._line
            yield f"{self._symbols(mark)} {value} {self._gap}"

    def _other(self, taken: list[str], schema: Schema, root: Schema) -> Iterator[str]:
        """A parameter of any name but those."""
        but = f" & ~/({'|'.join(map(_escaped, taken))})/" if taken else ""
        key = self.writer.terminal(f"/{KEY}/{but}")
        for kind, value in self._values(schema, root):
            end = self._tags.key_mark("", kind).removeprefix(self._tags.key) + self._line
            yield f"{self._symbols(self._tags.key)} {key} {self._symbols(end)} {value} {self._gap}"

    def _values(self, schema: Schema, root: Schema) -> Iterator[tuple[str, str]]:
        """Values with what ends them, behind the JSON type of each."""
        cases, strings = cases_of(schema, root), self._strings
        mixed = len(cases) > 1 and not self._tags.typed
        for case in cases:
            listed = strings_of(case)
            if listed is not None:
                yield from (("string", strings.literal(text)) for text in listed[0])
                for value in listed[1]:
                    yield KINDS[type(value)], f"{quoted(json.dumps(value))} {strings.end}"
            elif case.get("type") == "string":
                yield "string", strings.matching(case, no_json=mixed)
            elif set(case) - NOTES:
                yield from self._json(case, root)
            else:
                yield "string", strings.matching({})
                yield from self._json({}, root) if self._tags.typed else ()

    def _json(self, case: Schema, root: Schema) -> Iterator[tuple[str, str]]:
        """Values written as JSON, by their types where the tag names those."""
        named = self._tags.typed != "type" or "type" in case
        cases = [case] if named else [{**case, "type": kind} for kind in OTHER_KINDS]
        for one in cases:
            yield one.get("type", "object"), f"{json_value(one, root, self.writer)} {self._strings.end}"

    def _symbols(self, text: str) -> str:
        return symbols(text, self._tags.delimiters, self._token_of)

    def _check(self, name: str) -> None:
        """Raises RequestError where the parser would not read the name as it is."""
        found = self._tags.key_pattern.fullmatch(self._tags.key_mark(name, "string"))
        if found is None or found[1] != name:
            raise refused(
                f"a parameter named '{name[:40]}' has no form in this model's calls: name it with "
                "letters, digits and underscores"
            )


def _escaped(name: str) -> str:
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):x}}}" for char in name)
