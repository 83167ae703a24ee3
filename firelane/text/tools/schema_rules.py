"""Rules of values that a schema describes, for formats that do not write a call's arguments as one JSON
object.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from firelane.text.schemas.closed_schema import closed
from firelane.text.schemas.constraints import single_line
from firelane.text.tools.parameters import (
    CHOICES,
    MAX_CASES,
    NOTES,
    Schema,
    moved_references,
    refused,
    resolved,
)
from firelane.text.tools.raw_text import RuleWriter
from firelane.text.tools.tool import Tool

ROOT = "firelane_root"
HELD = frozenset({"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$ref"})


def named_fields(schema: Schema, where: str) -> dict[str, tuple[Schema, bool]]:
    """An object's fields, and whether each is required. Raises RequestError where the schema says more of the
    object than that.
    """
    more = sorted(set(schema) - HELD - NOTES)
    if more or schema.get("type", "object") != "object":
        said = f"'{more[0][:40]}'" if more else f"type '{str(schema.get('type'))[:40]}'"
        raise refused(
            f"{said} in the schema of '{where[:64]}' cannot be held in this model's calls: leave it out"
        )
    named, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(named, dict) or not isinstance(required, list):
        raise refused(
            f"the schema of '{where[:64]}' needs an object as `properties` and a list as `required`"
        )
    needed = {str(name) for name in cast(list[Any], required)}
    fields = {name: (value, name in needed) for name, value in cast(Schema, named).items()}
    others = other_fields(schema)
    for name in sorted(needed - set(fields)):
        if others is None:
            raise refused(f"'{where[:64]}' requires '{name[:40]}', which is none of its properties")
        fields[name] = (others, True)
    return fields


def other_fields(schema: Schema) -> Schema | None:
    """The schema of fields that are not named; None where there may be none."""
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        return cast(Schema, more)
    return {} if more is True or (more is None and not schema.get("properties")) else None


def closed_root(tool: Tool) -> tuple[Schema, Schema]:
    """The schema of the tool's parameters, with its references led on, and what they refer to."""
    root = closed(tool.schema())
    return resolved(root, root), root


def json_value(schema: Schema, root: Schema, writer: RuleWriter) -> str:
    """A symbol for the JSON of a value. Its schema takes along what it refers to."""
    schema = {key: value for key, value in schema.items() if key not in NOTES}
    if '"$ref"' in json.dumps(schema):
        moved = cast(Schema, moved_references(root, f"#/$defs/{ROOT}"))
        schema = {**cast(Schema, moved_references(schema, f"#/$defs/{ROOT}")), "$defs": {ROOT: moved}}
    return writer.rule(f"%json {json.dumps(single_line(schema))}")


def cases_of(schema: Any, root: Schema, *, follow: bool = True) -> list[Schema]:
    """The alternatives that a value's schema is made of, each of one type, or without one. follow: none of
    them is a reference. Raises RequestError where they are too many, or refer to nothing.
    """
    cases: list[Schema] = []
    todo: list[Any] = [schema]
    for _ in range(MAX_CASES):
        if not todo:
            return cases
        case = _one(todo.pop(0), root, follow=follow)
        listed = next((case[key] for key in CHOICES if isinstance(case.get(key), list)), None)
        if listed is not None and not set(case) - NOTES - set(CHOICES):
            todo[:0] = cast(list[Any], listed)
        elif isinstance(case.get("type"), list):
            todo[:0] = [
                {**case, "type": kind} for kind in cast(list[Any], case["type"]) if isinstance(kind, str)
            ]
        else:
            cases.append(case)
    raise refused(
        f"a parameter has more than {MAX_CASES} alternatives, or they refer to each other: leave some out"
    )


def _one(schema: Any, root: Schema, *, follow: bool) -> Schema:
    if not isinstance(schema, dict):
        return {}
    found = resolved(schema, root) if follow else cast(Schema, schema)
    target = cast(Schema, schema).get("$ref")
    if target is not None and not found:
        raise refused(
            f"'{str(target)[:80]}' refers to nothing in the schema: give what it means under `$defs`"
        )
    if not isinstance(found.get("type", ""), str | list):
        raise refused(f"type {str(found['type'])[:40]} is none of JSON: give a name")
    return found


def strings_of(schema: Schema) -> tuple[list[str], list[Any]] | None:
    """Values that `const` or `enum` list: the strings, and all else; None where there is neither."""
    if "const" in schema:
        values: list[Any] = [schema["const"]]
    elif isinstance(schema.get("enum"), list):
        values = cast(list[Any], schema["enum"])
    else:
        return None
    kind = schema.get("type")
    strings = [value for value in values if isinstance(value, str)]
    others = [value for value in values if not isinstance(value, str)]
    return (strings if kind in (None, "string") else []), ([] if kind == "string" else others)


def sequence(items: Sequence[tuple[str, bool]], separator: str, writer: RuleWriter) -> str:
    """A symbol for items in their order, with `separator` between them; those that are not required may be
    left out. "" for no items.
    """
    after, alone = "", ""
    for symbol, is_required in reversed(items):
        begun = f"{symbol} {after}".strip()
        if is_required:
            alone = writer.rule(begun)
            after = writer.rule(f"{separator} {begun}")
        else:
            alone = writer.rule(f"{begun} | {alone}" if alone else f"({begun})?")
            after = writer.rule(f"({separator} {symbol})? {after}".strip())
    return alone
