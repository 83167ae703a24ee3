"""The schema that a call's arguments hold to: they are an object, whatever else the tool's schema allows."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from firelane.text.schemas.typed_schema import typed
from firelane.text.tools.parameters import (
    CHOICES,
    COMBINED,
    MAX_STEPS,
    NOTES,
    Schema,
    moved_references,
    resolved,
)

ROOT = "firelane_parameters"
DEFINITIONS = ("$defs", "definitions")
_BESIDE = NOTES | {"type", *DEFINITIONS}
_TO_ROOT = re.compile(r'"\$ref": "#(?!/(?:\$defs|definitions)/)')


def argument_schema(parameters: Schema) -> Schema | None:
    """The schema of the objects among the values of `parameters`; None where there are none. A reference or
    a choice that leaves one schema of an object becomes that one, so that formats which write each parameter
    by itself can hold it.
    """
    root = typed(parameters)
    if root.get("type") == "object" and not any(key in root for key in ("$ref", *COMBINED)):
        return root
    return _of_objects(_flattened(_with_own_root(root)))


def _with_own_root(root: Schema) -> Schema:
    """The same, in which references to the root lead to a copy: the root itself is to be narrowed."""
    if _TO_ROOT.search(json.dumps(root)) is None:
        return root
    moved: Any = moved_references(root, f"#/$defs/{ROOT}")
    return {**cast(Schema, moved), "$defs": {ROOT: moved}}


def _flattened(schema: Schema) -> Schema:
    root = schema
    for _ in range(MAX_STEPS):
        inner = _only_case(schema, root)
        if inner is None:
            return schema
        kept = {key: value for key, value in schema.items() if key not in ("$ref", *COMBINED)}
        schema = {**kept, **inner, **{key: root[key] for key in DEFINITIONS if key in root}}
    return schema


def _only_case(schema: Schema, root: Schema) -> Schema | None:
    """The one schema that `schema` leads to; None where it says more itself, or several are left."""
    said = set(schema) - _BESIDE
    key = next(iter(said), "")
    if len(said) != 1 or not _may_be_object(schema, root):
        return None
    if key == "$ref":
        return resolved(schema, root) or None
    cases: Any = schema[key]
    if key not in COMBINED or not isinstance(cases, list):
        return None
    left = [case for case in cast(list[Any], cases) if key == "allOf" or _may_be_object(case, root)]
    only = left[0] if len(left) == 1 else None
    return cast(Schema, only) if isinstance(only, dict) else ({} if only is True else None)


def _may_be_object(schema: Any, root: Schema) -> bool:
    """False where the schema, as far as it says so itself, allows no object."""
    if not isinstance(schema, dict):
        return schema is not False
    found = resolved(cast(Schema, schema), root) or cast(Schema, schema)
    kind = found.get("type", "object")
    listed: Any = found.get("enum", [found["const"]] if "const" in found else None)
    if isinstance(listed, list) and not any(isinstance(value, dict) for value in cast(list[Any], listed)):
        return False
    return "object" in cast(list[Any], kind) if isinstance(kind, list) else kind == "object"


def _of_objects(schema: Schema) -> Schema | None:
    choices = [schema[key] for key in CHOICES if isinstance(schema.get(key), list)]
    none = any(not any(_may_be_object(case, schema) for case in cases) for cases in choices)
    return None if none or not _may_be_object(schema, schema) else {**schema, "type": "object"}
