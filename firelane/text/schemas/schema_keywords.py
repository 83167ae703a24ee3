"""Keywords of JSON schemas that say more about a value than the engine can hold an answer to, and less than
would make an answer without them wrong to read: they are left out, and the client is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

Schema = dict[str, Any]
FORMATS = frozenset(
    (
        *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"),
        "unknown",
    )
)
"""Values of `format` that an answer is held to. (llguidance, parser/src/json/formats.rs)"""
ONE = ("items", "additionalProperties", "contains", "additionalItems", "unevaluatedItems", "propertyNames")
MANY = ("prefixItems", "anyOf", "oneOf", "allOf", "items")
NAMED = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose value is a schema, a list of schemas, or schemas by name."""


def held(schema: Schema) -> Schema:
    """A copy without the keywords that are not held."""
    return {key: _held_value(key, value) for key, value in schema.items() if not _is_not_held(key, value)}


def not_held(schemas: Iterable[Schema]) -> list[str]:
    """Names of the keywords that `held` takes out of these schemas and that ask for something, as
    "schema.uniqueItems"."""
    found = dict.fromkeys(name for schema in schemas for name in _found(schema))
    return [f"schema.{name}" for name in found]


def _held_value(key: str, value: Any) -> Any:
    if isinstance(value, list) and key in MANY:
        return [_held_one(each) for each in cast(list[Any], value)]
    if isinstance(value, dict) and key in NAMED:
        return {name: _held_one(each) for name, each in cast(Schema, value).items()}
    return _held_one(value) if key in ONE else value


def _held_one(value: Any) -> Any:
    return held(cast(Schema, value)) if isinstance(value, dict) else value


def _is_not_held(key: str, value: Any) -> bool:
    if key == "format":
        return isinstance(value, str) and value not in FORMATS
    return key == "uniqueItems" and isinstance(value, bool)


def _found(schema: Schema) -> Iterator[str]:
    for key, value in schema.items():
        if _is_not_held(key, value) and value is not False and not _is_of_numbers(key, schema):
            yield key
        for each in _schemas_in(key, value):
            yield from _found(each)


def _is_of_numbers(key: str, schema: Schema) -> bool:
    """Whether it is the width of a number, as OpenAPI writes it."""
    return key == "format" and schema.get("type") in ("integer", "number")


def _schemas_in(key: str, value: Any) -> Iterator[Schema]:
    inner: Iterable[Any] = ()
    if isinstance(value, list) and key in MANY:
        inner = cast(list[Any], value)
    elif isinstance(value, dict) and key in NAMED:
        inner = cast(Schema, value).values()
    elif key in ONE:
        inner = (value,)
    for each in inner:
        if isinstance(each, dict):
            yield cast(Schema, each)
