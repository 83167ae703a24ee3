"""Parts of a tool's definition that may be left out, for templates that fail without them."""

from __future__ import annotations

from typing import Any, cast

Definition = dict[str, Any]
DESCRIPTION, PROPERTIES, NOTES = "description", "properties", "descriptions of parameters"
GAPS = (DESCRIPTION, PROPERTIES, NOTES)


def without(definition: Definition, gap: str) -> Definition:
    """A whole definition with this gap."""
    function = definition["function"]
    parameters = function["parameters"]
    if gap == DESCRIPTION:
        function = _less(function, "description")
    elif gap == PROPERTIES:
        function = function | {"parameters": _less(parameters, "properties")}
    else:
        bare = {name: _less(schema, "description") for name, schema in parameters["properties"].items()}
        function = function | {"parameters": parameters | {"properties": bare}}
    return definition | {"function": function}


def filled(definition: Definition, gaps: frozenset[str]) -> Definition:
    """The definition with something empty where it has one of these gaps."""
    if not gaps:
        return definition
    function: dict[str, Any] = definition["function"]
    parameters: dict[str, Any] = function["parameters"]
    if PROPERTIES in gaps:
        parameters = {"properties": {}} | parameters
    named = parameters.get("properties")
    if NOTES in gaps and isinstance(named, dict):
        noted = {name: _noted(schema) for name, schema in cast(dict[str, Any], named).items()}
        parameters = parameters | {"properties": noted}
    said = {"description": ""} if DESCRIPTION in gaps and not function.get("description") else {}
    return definition | {"function": function | said | {"parameters": parameters}}


def _noted(schema: Any) -> Any:
    return {"description": ""} | cast(dict[str, Any], schema) if isinstance(schema, dict) else schema


def _less(value: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: one for key, one in value.items() if key != name}
