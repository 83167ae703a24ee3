"""Keywords that no answer is held to leave a schema, and are told."""

from __future__ import annotations

import datetime
import decimal
import enum
import ipaddress
import json
import pathlib
import re
import uuid
from typing import Any, Literal

import pydantic
import pytest
from llguidance import LLMatcher
from openai.lib._pydantic import to_strict_json_schema

from firelane.text.schemas.closed_schema import FORMATS, closed, held, not_held

MORE_FORMATS = (
    *(
        "iri",
        "regex",
        "json-pointer",
        "uri-reference",
        "idn-email",
        "binary",
        "byte",
        "path",
        "password",
        "uuid4",
    ),
    *("decimal", "ipv4network", "multi-host-uri", "base64", "color"),
)


def complaint(schema: dict[str, Any]) -> str:
    return LLMatcher.validate_grammar(
        LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"lenient": False})
    )


@pytest.mark.parametrize("name", [*sorted(FORMATS), *MORE_FORMATS])
def test_formats_are_those_that_the_library_holds(name):
    assert (complaint({"type": "string", "format": name}) == "") == (name in FORMATS)


class Colour(enum.StrEnum):
    red = "red"
    blue = "blue"


class Point(pydantic.BaseModel):
    x: int


class Tree(pydantic.BaseModel):
    kids: list[Tree]


TYPES = (
    *(str, int, float, bool, bytes, datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
    *(
        uuid.UUID,
        decimal.Decimal,
        pathlib.Path,
        Colour,
        Literal["x", "y"],
        list[int],
        set[str],
        frozenset[int],
    ),
    *(tuple[int, str], dict[str, int], int | None, int | str, Point, Tree, re.Pattern, pydantic.SecretStr),
    *(pydantic.AnyUrl, pydantic.HttpUrl, pydantic.FilePath, pydantic.UUID4, pydantic.PostgresDsn),
    *(ipaddress.IPv4Address, ipaddress.IPv6Network, pydantic.IPvAnyAddress, pydantic.Base64Bytes),
)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_types_of_pydantic_through_the_helper_of_openai(kind):
    model = pydantic.create_model("Model", value=(kind, ...))
    assert complaint(closed(to_strict_json_schema(model))) == ""


def test_a_field_that_is_named_like_a_keyword():
    schema = {
        "type": "object",
        "properties": {
            "format": {"type": "string", "format": "colour"},
            "uniqueItems": {"type": "array", "items": {"format": "odd"}, "uniqueItems": True},
            "when": {"type": "string", "format": "date"},
        },
        "$defs": {"a": {"anyOf": [{"uniqueItems": False}, {"const": {"format": "colour"}}]}},
    }
    assert held(schema) == {
        "type": "object",
        "properties": {
            "format": {"type": "string"},
            "uniqueItems": {"type": "array", "items": {}},
            "when": {"type": "string", "format": "date"},
        },
        "$defs": {"a": {"anyOf": [{}, {"const": {"format": "colour"}}]}},
    }
    assert not_held([schema, schema]) == ["schema.format", "schema.uniqueItems"]


def test_what_asks_for_nothing_is_not_told():
    widths = {
        "properties": {
            "n": {"type": "integer", "format": "int32"},
            "x": {"type": "number", "format": "float"},
        }
    }
    assert not_held([widths, {"uniqueItems": False}, {"format": "email"}]) == []
    assert complaint(held({"type": "object", **widths})) == ""
