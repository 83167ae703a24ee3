"""Limits of JSON schemas that clients send, and where a schema is looked at before the engine sees it."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from firelane.errors import RequestError

MAX_SCHEMA_BYTES = 64 << 10
MAX_SCHEMA_DEPTH = 32


def check_schema(schema: dict[str, Any], where: str) -> None:
    """Raises RequestError on a schema that is too large or too deep. `where` names it in the error."""
    if depth_of(schema) > MAX_SCHEMA_DEPTH:
        raise RequestError(
            f"`{where}` is nested more than {MAX_SCHEMA_DEPTH} levels deep: use a flatter schema", param=where
        )
    size = len(msgspec.json.encode(schema))
    if size > MAX_SCHEMA_BYTES:
        raise RequestError(
            f"`{where}` has {size} bytes of JSON: at most {MAX_SCHEMA_BYTES} are taken", param=where
        )


def depth_of(value: Any) -> int:
    """Levels of objects and arrays in a JSON value; does not recurse."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        if depth > MAX_SCHEMA_DEPTH:
            break
        level = [child for item in level for child in _children(item)]
    return depth


def _children(item: Any) -> list[Any]:
    return list(cast(dict[str, Any], item).values()) if isinstance(item, dict) else item
