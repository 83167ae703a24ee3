"""Parameters of a tool, for formats that write each value as plain text: what the schema says decides how
that text is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn, cast

from firelane.errors import RequestError

Schema = dict[str, Any]
MAX_STEPS = 16
"""Steps along references that lead on to others, at most."""
MAX_CASES = 256
"""Alternatives of one value."""
MAX_COUNT = 100_000
"""Characters and items that a schema may count."""
CHOICES = ("anyOf", "oneOf")
COMBINED = (*CHOICES, "allOf")
NOTES = frozenset({"$schema", "$id", "title", "description", "default", "examples", "strict", "$comment"})
"""Keys that constrain nothing."""
STRING = frozenset({"string"})
KINDS: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Values as Python writes them, which models do, too."""


def refused(message: str) -> RequestError:
    return RequestError(f"`tools`: {message}", param="tools")


def count(schema: Schema, key: str) -> int | None:
    """A limit that a schema sets; None where it sets none. Raises RequestError."""
    value = schema.get(key)
    if value is not None and (type(value) is not int or not 0 <= value < MAX_COUNT):
        raise refused(
            f"{key} {str(value)[:40]} cannot be held in this model's calls: give less than {MAX_COUNT}"
        )
    return value


def resolved(schema: Any, root: Schema) -> Schema:
    """The schema that a reference leads to, or the schema itself; {} where there is none."""
    for _ in range(MAX_STEPS):
        if not isinstance(schema, dict):
            return {}
        target = cast(Schema, schema).get("$ref")
        if not isinstance(target, str):
            return cast(Schema, schema)
        schema = _at(root, target)
    return {}


def _at(root: Schema, target: str) -> Any:
    place: Any = root
    for part in target.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        place = cast(Schema, place).get(name) if isinstance(place, dict) else None
    return place


def moved_references(schema: Any, root: str) -> Any:
    """The schema for a place inside another one: references to its own root lead to `root`."""
    if isinstance(schema, list):
        return [moved_references(item, root) for item in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    moved = {key: moved_references(value, root) for key, value in cast(Schema, schema).items()}
    target = moved.get("$ref")
    if isinstance(target, str) and target.startswith("#"):
        moved["$ref"] = root + target[1:]
    return moved


def _branches(schema: Any, root: Schema) -> Iterator[Schema]:
    """The schemas that a value of `schema` may have to hold to."""
    todo: list[Any] = [schema]
    for _ in range(MAX_CASES):
        if not todo:
            return
        schema = resolved(todo.pop(), root)
        yield schema
        todo += [case for key in COMBINED for case in _listed(schema, key)]


def names_of(parameters: Schema) -> frozenset[str]:
    """Names of the parameters that the schema lists."""
    return frozenset(name for fields in _fields(parameters) for name in fields)


def field_of(schema: Any, root: Schema, name: str) -> Any:
    """The schema of an object's field; {} where nothing is known of it."""
    branches = list(_branches(schema, root))
    named = [cast(Schema, one["properties"]) for one in branches if isinstance(one.get("properties"), dict)]
    found = [fields[name] for fields in named if name in fields]
    return _any_of(
        found or [one["additionalProperties"] for one in branches if "additionalProperties" in one]
    )


def items_of(schema: Any, root: Schema) -> Any:
    """The schema of a list's items; {} where nothing is known of them."""
    return _any_of([one["items"] for one in _branches(schema, root) if "items" in one])


def _any_of(schemas: list[Any]) -> Any:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas} if schemas else {}


def _fields(root: Schema) -> list[Schema]:
    listed = [schema.get("properties") for schema in _branches(root, root)]
    return [cast(Schema, fields) for fields in listed if isinstance(fields, dict)]


def kinds_of(parameters: Schema, name: str) -> frozenset[str]:
    """JSON types that the parameter may have; none where the schema does not say."""
    found = [kinds(fields[name], parameters) for fields in _fields(parameters) if name in fields]
    if not found:
        return kinds(resolved(parameters, parameters).get("additionalProperties"), parameters)
    return frozenset[str]().union(*found)


def kinds(schema: Any, root: Schema) -> frozenset[str]:
    """JSON types that a value of the schema may have; none where it does not say."""
    found: set[str] = set()
    todo = [schema]
    for _ in range(MAX_CASES):
        if not todo:
            return frozenset(found)
        case = resolved(todo.pop(), root)
        cases = next((listed for key in COMBINED if (listed := _listed(case, key))), None)
        said = [] if cases else _said(case)
        if not cases and not said:
            return frozenset()
        todo += cases or ()
        found.update(said)
    return frozenset()


def _said(schema: Schema) -> list[str]:
    """The types that a schema without alternatives names."""
    declared = schema.get("type")
    if declared is not None:
        listed = cast(list[Any], declared) if isinstance(declared, list) else [declared]
        return [kind for kind in listed if isinstance(kind, str)]
    values = [schema["const"]] if "const" in schema else _listed(schema, "enum")
    return [KINDS[type(value)] for value in values]


def _listed(schema: Schema, key: str) -> list[Any]:
    listed = schema.get(key)
    return cast(list[Any], listed) if isinstance(listed, list) else []


def as_json(text: str, allowed: frozenset[str]) -> str:
    """The JSON text of a value that was written plainly. What is JSON stays as it is, unless it may be a
    string and its own type is not allowed; all else is a string. allowed: as `kinds` gives them.
    """
    word = text.strip()
    word = word if "string" in allowed else _WORDS.get(word, word) if allowed else word
    kind = _kind(word)
    if kind is None:
        return quoted_text(text)
    if allowed and "string" not in allowed:
        return word
    fits = not allowed or kind in allowed or (kind == "integer" and "number" in allowed)
    return word if fits and kind != "string" else quoted_text(text)


def quoted_text(text: str) -> str:
    """A JSON string."""
    return json.dumps(text, ensure_ascii=False)


def text_in_json(text: str) -> str:
    """A part of a JSON string."""
    return quoted_text(text)[1:-1]


def _kind(word: str) -> str | None:
    """The type of a JSON text; None where it is none."""
    try:
        return KINDS[type(json.loads(word, parse_constant=_refuse))]
    except (ValueError, RecursionError):
        return None


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)
