"""Object schemas with the fields that they name, and no others.

JSON Schema leaves an object open unless it says `additionalProperties`; Pydantic, Instructor and LangChain
leave that out and mean the fields that they list. A model that may add fields of its own often never ends.
"""

from __future__ import annotations

import json
import re
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


COMBINED = ("allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas", "unevaluatedProperties")
"""Beside one of these, an object's fields are not all that it may have."""
REF = re.compile(r'"\$ref": "#/(?:\$defs|definitions)/([^"]+)"')


def closed(schema: Schema) -> Schema:
    """A copy in which every object schema that lists its fields allows no others, but for those that say
    `additionalProperties`, and those that are combined with other schemas of the same object. What lies below
    `not`, `if` and their like is left as it is: closed, it would mean something else. Keywords that no answer
    is held to are left out."""
    return _Closer(_mixed(schema)).one(held(schema))


class _Closer:
    def __init__(self, open_names: frozenset[str]) -> None:
        self._open = open_names

    def one(self, schema: Any, *, part: bool = False) -> Any:
        """part: it says only a part of what holds for its object."""
        if not isinstance(schema, dict):
            return schema
        old = cast(Schema, schema)
        parts = _says_parts(old) or part
        new = {key: self._value(key, value, parts) for key, value in _with_names(old).items()}
        if not part and _lists_all(old):
            new["additionalProperties"] = False
        return new

    def _value(self, key: str, value: Any, parts: bool) -> Any:
        if isinstance(value, list) and key in MANY:
            part = key in COMBINED and parts
            return [self.one(each, part=part) for each in cast(list[Any], value)]
        if isinstance(value, dict) and key in NAMED:
            is_definition = key in ("$defs", "definitions")
            return {
                name: self.one(each, part=is_definition and name in self._open)
                for name, each in cast(Schema, value).items()
            }
        return self.one(value) if key in ONE else value


def _with_names(schema: Schema) -> Schema:
    """The same with fields in the place of `propertyNames`, where that is a list of names: so Pydantic writes
    a dictionary of few keys.
    """
    given, values = schema.get("propertyNames"), schema.get("additionalProperties")
    if "properties" in schema or "patternProperties" in schema or not isinstance(given, dict):
        return schema
    names = cast(Schema, given).get("enum")
    if set(cast(Schema, given)) - {"type", "title"} != {"enum"} or not isinstance(names, list):
        return schema
    if not all(isinstance(name, str) for name in cast(list[Any], names)):
        return schema
    fields = {name: {} if values is None else values for name in cast(list[str], names)}
    kept = {key: value for key, value in schema.items() if key != "propertyNames"}
    most = kept.get("maxProperties")
    if isinstance(most, int | float) and most >= len(fields):
        del kept["maxProperties"]  # says nothing any more
    return kept | {"properties": fields, "additionalProperties": False}


def _lists_all(schema: Schema) -> bool:
    lists = "properties" in schema or "patternProperties" in schema
    return lists and "additionalProperties" not in schema and not any(key in schema for key in COMBINED)


def _says_parts(schema: Schema) -> bool:
    """Whether its allOf, anyOf and oneOf hold beside each other or beside fields."""
    listed = schema.get("allOf")
    several = isinstance(listed, list) and len(cast(list[Any], listed)) > 1
    several = several or sum(key in schema for key in COMBINED) > 1
    return several or "properties" in schema or "patternProperties" in schema


def _mixed(schema: Schema) -> frozenset[str]:
    """Names of definitions that say a part of some object."""
    found: set[str] = set()
    todo: list[Any] = [schema]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            one = cast(Schema, value)
            if any(key in one for key in COMBINED) and _says_parts(one):
                beside = {key: one[key] for key in ("allOf", "anyOf", "oneOf", "$ref") if key in one}
                found.update(REF.findall(json.dumps(beside)))
            todo += one.values()
        elif isinstance(value, list):
            todo += value
    return frozenset(found)
