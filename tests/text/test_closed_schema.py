"""Schemas as Pydantic, Instructor and LangChain send them: open on paper, closed in what they mean."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pydantic
import pytest

from firelane.text.schemas.closed_schema import closed

FIELDS = {"a": {"type": "integer"}}


def an_object(**more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": FIELDS, **more}


CLOSED = an_object(additionalProperties=False)


class Address(pydantic.BaseModel):
    street: str
    zip: str | None = None


class Person(pydantic.BaseModel):
    name: str
    home: Address
    work: Address | None = None
    others: list[Address] = []
    by_name: dict[str, Address] = {}
    kind: Literal["a", "b"] = "a"


class Free(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str


def test_a_pydantic_model() -> None:
    schema = closed(Person.model_json_schema())
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Address"]["additionalProperties"] is False
    assert schema["properties"]["by_name"]["additionalProperties"] == {"$ref": "#/$defs/Address"}


def test_a_tool_of_langchain() -> None:
    """Title and description beside the fields, definitions inlined."""
    home = {"description": "where", "properties": {"zip": {"type": "string"}}, "type": "object"}
    schema = closed({"title": "person", "description": "one", "properties": {"home": home}, "type": "object"})
    assert schema["additionalProperties"] is False
    assert schema["properties"]["home"]["additionalProperties"] is False


@pytest.mark.parametrize(
    "schema",
    [
        Free.model_json_schema(),
        an_object(additionalProperties=True),
        an_object(additionalProperties={"type": "string"}),
        an_object(unevaluatedProperties=True),
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"enum": [{"properties": {}}], "default": {"properties": {}}, "const": {"properties": {}}},
        {"not": an_object(), "if": an_object(), "then": an_object()},
        {"allOf": [an_object(), {"properties": {"b": {}}}]},
        an_object(anyOf=[{"required": ["a"], "properties": {"b": {}}}]),
        {"allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"b": {}}}], "$defs": {"Base": an_object()}},
        an_object(**{"$ref": "#/$defs/Base", "$defs": {"Base": {"properties": {"b": {}}}}}),
    ],
    ids=str,
)
def test_left_as_it_is(schema: dict[str, Any]) -> None:
    assert closed(schema) == schema


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (an_object(), CLOSED),
        ({"patternProperties": {"^x": {}}}, {"patternProperties": {"^x": {}}, "additionalProperties": False}),
        ({"items": an_object()}, {"items": CLOSED}),
        ({"items": [an_object()]}, {"items": [CLOSED]}),
        ({"prefixItems": [an_object()]}, {"prefixItems": [CLOSED]}),
        ({"anyOf": [an_object(), {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        ({"allOf": [an_object()], "title": "one"}, {"allOf": [CLOSED], "title": "one"}),
        ({"allOf": [an_object(properties={"b": an_object()}), {}]}, None),
        ({"properties": {"properties": {"type": "string"}}}, None),
    ],
    ids=str,
)
def test_closed(schema: dict[str, Any], wanted: dict[str, Any] | None) -> None:
    before = copy.deepcopy(schema)
    found = closed(schema)
    assert schema == before
    if wanted is not None:
        assert found == wanted


def test_fields_below_a_part_are_closed_again() -> None:
    schema = closed({"allOf": [{"properties": {"b": an_object()}}, {"properties": {"c": {}}}]})
    assert schema["allOf"][0] == {"properties": {"b": CLOSED}}


def test_a_field_may_be_called_like_a_keyword() -> None:
    schema = closed({"properties": {"properties": {"type": "string"}, "items": an_object()}})
    assert schema["properties"] == {"properties": {"type": "string"}, "items": CLOSED}
    assert schema["additionalProperties"] is False


FEW = {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}}
OF_FEW = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, OF_FEW),
        ({"maxProperties": 2}, OF_FEW),
        ({"maxProperties": 1}, {**OF_FEW, "maxProperties": 1}),
        ({"propertyNames": {"pattern": "^a"}}, {**FEW, "propertyNames": {"pattern": "^a"}}),
        ({"propertyNames": {"enum": [1]}}, {**FEW, "propertyNames": {"enum": [1]}}),
        ({"properties": {"a": {}}}, {**FEW, "properties": {"a": {}}}),
    ],
)
def test_a_dictionary_of_few_keys_has_fields(more: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert closed({**FEW, **more}) == wanted


def test_a_pydantic_dictionary_of_few_keys() -> None:
    class Amounts(pydantic.BaseModel):
        of: dict[Literal["apples", "pears"], int]

    sent = closed(Amounts.model_json_schema())
    assert set(sent["properties"]["of"]["properties"]) == {"apples", "pears"}
    assert "propertyNames" not in sent["properties"]["of"]
