"""Fields of a JSON value that its type has no place for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import inspect

_STRUCT = inspect.StructType
_UNION = inspect.UnionType


def drop_unknown(kind: inspect.Type, value: Any, where: str = "") -> Iterator[str]:
    """Take fields out of `value` that a type which forbids unknown ones does not know, and yield their names
    (entries of a list are not told apart). They stay where the type is ALWAYS_STRICT: there a misspelt name
    would lose what the answer must be.
    """
    if isinstance(kind, inspect.Metadata):
        yield from drop_unknown(kind.type, value, where)
    elif isinstance(kind, _UNION):
        for one in kind.types:
            yield from drop_unknown(one, value, where)
    elif isinstance(kind, inspect.ListType) and isinstance(value, list):
        for item in value:
            yield from drop_unknown(kind.item_type, item, f"{where}[]")
    elif isinstance(kind, _STRUCT) and isinstance(value, dict):
        yield from _of_struct(kind, value, f"{where}." if where else "")


def _of_struct(kind: inspect.StructType, value: dict[str, Any], prefix: str) -> Iterator[str]:
    fields = {field.encode_name: field.type for field in kind.fields}
    for name in list(value):
        if name in fields:
            yield from drop_unknown(fields[name], value[name], prefix + name)
        elif kind.forbid_unknown_fields and not getattr(kind.cls, "ALWAYS_STRICT", False):
            del value[name]
            yield prefix + name
