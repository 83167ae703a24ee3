"""JSON schemas with the types that their authors mean.

JSON Schema lets a keyword such as `properties` say nothing of values of other types: 7 is valid where only
`properties` is given. Whoever lists an object's fields means an object.
"""

from __future__ import annotations

from typing import Any, cast

from firelane.text.schemas.closed_schema import MANY, NAMED, ONE, Schema

_KEYWORDS: dict[str, frozenset[str]] = {
    "object": frozenset(
        {
            *("properties", "patternProperties", "additionalProperties", "propertyNames", "required"),
            *("minProperties", "maxProperties", "unevaluatedProperties", "dependentRequired"),
        }
    ),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"}),
    "string": frozenset({"pattern", "minLength", "maxLength"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
}
"""Keywords that say something of values of one type only."""
_SAYS_TYPE = frozenset({"type", "enum", "const"})
_CASES = ("anyOf", "oneOf", "allOf")


def typed(schema: Schema) -> Schema:
    """A copy in which each schema without a type has the one that its keywords are for."""
    return _typed(schema)


def implied_type(schema: Schema) -> str | None:
    """The type that a schema means without naming it; None where it names one, or means none or several.
    Beside alternatives, or a reference, that may name a type themselves, only `properties` tells.
    """
    if _SAYS_TYPE & schema.keys():
        return None
    if "$ref" in schema or any(_names_type(case) for key in _CASES for case in _listed(schema, key)):
        return "object" if "properties" in schema and not _may_be_null(schema) else None
    found = [kind for kind, keywords in _KEYWORDS.items() if keywords & schema.keys()]
    return found[0] if len(found) == 1 else None


def _typed(schema: Any, *, has_type: bool = False) -> Any:
    """has_type: the schema that this one is a part of names a type."""
    if not isinstance(schema, dict):
        return schema
    old = cast(Schema, schema)
    kind = None if has_type else implied_type(old)
    new = {key: _value(key, value, has_type="type" in old) for key, value in old.items()}
    return new if kind is None else {"type": kind, **new}


def _value(key: str, value: Any, *, has_type: bool) -> Any:
    if isinstance(value, list) and key in MANY:
        part = key in _CASES and has_type
        return [_typed(each, has_type=part) for each in cast(list[Any], value)]
    if isinstance(value, dict) and key in NAMED:
        return {name: _typed(each) for name, each in cast(Schema, value).items()}
    return _typed(value) if key in ONE else value


def _names_type(case: Any) -> bool:
    return isinstance(case, dict) and bool((_SAYS_TYPE | {"$ref", *_CASES}) & cast(Schema, case).keys())


def _may_be_null(schema: Schema) -> bool:
    cases = [case for key in ("anyOf", "oneOf") for case in _listed(schema, key)]
    return any("null" in str(cast(Schema, case).get("type")) for case in cases if isinstance(case, dict))


def _listed(schema: Schema, key: str) -> list[Any]:
    listed = schema.get(key)
    return cast(list[Any], listed) if isinstance(listed, list) else []
