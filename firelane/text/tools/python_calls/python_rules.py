"""Grammars of a call's arguments as Python writes them."""

from __future__ import annotations

import json

from firelane.text.tools.call_rules import quoted
from firelane.text.tools.parameters import Schema, refused
from firelane.text.tools.raw_text import RuleWriter
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

CONSTANTS = {"boolean": '("True" | "False")', "null": '"None"'}


def python_arguments(tool: Tool, writer: RuleWriter) -> str:
    """`a=1, b="x"`: the parameters in the order in which the schema names them. Lists and objects are written
    as JSON, which the parser reads, too. Raises RequestError.
    """
    schema, root = closed_root(tool)
    items: list[tuple[str, bool]] = []
    for name, (value, required) in named_fields(schema, tool.name).items():
        if not name.isidentifier():
            raise refused(
                f"a parameter named '{name[:40]}' has no form in this model's calls: name it with "
                "letters, digits and underscores"
            )
        items.append((writer.rule(f"{quoted(name + '=')} {_value(value, root, writer)}"), required))
    more = other_fields(schema)
    if more is not None and not items:
        key = writer.terminal("/[A-Za-z_][A-Za-z0-9_]{0,63}=/")
        pair = writer.rule(f"{key} {_value(more, root, writer)}")
        return f'({pair} (", " {pair})*)?'
    return sequence(items, quoted(", "), writer)


def _value(schema: Schema, root: Schema, writer: RuleWriter) -> str:
    return "(" + " | ".join(_case(case, root, writer) for case in cases_of(schema, root)) + ")"


def _case(schema: Schema, root: Schema, writer: RuleWriter) -> str:
    if strings_of(schema) is None and schema.get("type") in CONSTANTS:
        return CONSTANTS[schema["type"]]
    listed = strings_of(schema)
    if listed is None:
        return json_value(schema, root, writer)
    return " | ".join(quoted(_python(value)) for value in [*listed[0], *listed[1]])


def _python(value: object) -> str:
    words = {"true": "True", "false": "False", "null": "None"}
    text = json.dumps(value, ensure_ascii=False)
    return words.get(text, text)
