"""A call's arguments are an object, whatever the tool's schema says: in every format, forced and strict."""

from __future__ import annotations

import json

import pytest
from drawing import Drawing
from splitting import joined, split
from test_format_rules import CALL, FAMILIES

from firelane.api.formats import StructuredOutputs
from firelane.api.sampling import SamplingFields
from firelane.errors import RequestError
from firelane.text.schemas.constraints import grammar_of
from firelane.text.schemas.typed_schema import implied_type, typed
from firelane.text.tools.argument_schema import argument_schema
from firelane.text.tools.families import named_family
from firelane.text.tools.parameters import kinds_of
from firelane.text.tools.tool import Tool

ARGUMENTS = '{"s": "x", "e": "red", "b": true}'
NO_OBJECTS = ("128", "true", "null", "[]", '"x"')
S = {"s": {"type": "string", "maxLength": 4}}
AN_OBJECT = {"type": "object", "properties": S, "required": ["s"], "additionalProperties": False}
DEFS = {"$defs": {"P": AN_OBJECT, "N": {"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]}}}
ROOTS = [
    {},
    {"description": "What to do"},
    {"properties": S, "additionalProperties": False},
    {"required": ["s"], "properties": S},
    {**AN_OBJECT, "type": ["null", "object", "integer"]},
    {"anyOf": [{"type": "null"}, AN_OBJECT]},
    {"oneOf": [{"const": 3}, AN_OBJECT, {"enum": [None, "x"]}], "title": "t"},
    {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/P"}], **DEFS},
    {"anyOf": [{"$ref": "#/$defs/N"}, False, {"type": ["array", "string"]}], **DEFS},
    {"$ref": "#/$defs/P", **DEFS},
    {"$ref": "#/definitions/P", "definitions": DEFS["$defs"], "description": "d"},
    {"allOf": [{"$ref": "#/$defs/N"}], **DEFS},
    {"allOf": [True]},
    {"anyOf": [True, {"type": "null"}]},
]


def grammar(name: str, schema: dict, *, free: bool) -> Drawing:
    family, tools = named_family(name), [Tool("plain", None, schema, strict=True)]
    if free:
        return Drawing(family.free_rules(tools, lambda _: None, (), parallel=False))
    return Drawing("start: calls\n" + family.rules(tools, lambda _: None, parallel=False))


@pytest.mark.parametrize("schema", ROOTS)
@pytest.mark.parametrize("name", FAMILIES)
def test_forced_arguments_are_an_object(name, schema):
    forced, known = grammar(name, schema, free=False), (Tool("plain", None, schema),)
    for seed in range(2):
        text = forced.draw(seed)
        if text is not None:
            content, _, calls = joined(split(named_family(name).parse, [text], known=known))
            assert not content.strip()
            assert [type(json.loads(arguments)) for _, arguments in calls] == [dict]
    if ARGUMENTS in CALL[name]:
        free = grammar(name, schema, free=True)
        for value in NO_OBJECTS:
            assert not forced.takes(CALL[name].replace(ARGUMENTS, value))
            assert not free.takes(CALL[name].replace(ARGUMENTS, value))
        assert forced.takes(CALL[name].replace(ARGUMENTS, '{"s": "x"}'))


@pytest.mark.parametrize("schema", ROOTS[4:12])
@pytest.mark.parametrize("name", ["qwen3_coder", "gemma4", "olmo3", "deepseek_v32"])
def test_formats_of_single_parameters_hold_what_one_object_is_left_of(name, schema):
    """Its only parameter is `s`."""
    drawn = [grammar(name, schema, free=False).draw(seed) for seed in range(3)]
    known = (Tool("plain", None, schema),)
    read = [joined(split(named_family(name).parse, [text], known=known))[2] for text in drawn if text]
    assert {key for calls in read for key in json.loads(calls[0][1])} == {"s"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"type": ["string", "null"]},
        {"enum": [1, None]},
        {"const": []},
        {"anyOf": [{"type": "null"}, {"type": "array"}]},
        {"oneOf": [False]},
        {"items": {}},
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "boolean"}}},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["hermes", "llama3_json", "glm47", "harmony"])
def test_a_schema_without_objects_is_refused_where_it_would_be_held(name, schema):
    with pytest.raises(RequestError, match="'plain' allow no object"):
        grammar(name, schema, free=False)
    named_family(name).free_rules([Tool("plain", None, schema)], lambda _: None, (), parallel=False)


def test_a_reference_to_the_root_keeps_what_the_root_was():
    """Narrowed, a list's end could not be written any more."""
    schema = {"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    held = grammar("hermes", schema, free=False)
    for value, is_taken in (('{"next": {"next": null}}', True), ("null", False), ('{"next": 1}', False)):
        assert held.takes(CALL["hermes"].replace(ARGUMENTS, value)) is is_taken


@pytest.mark.parametrize("schema", ROOTS[2:12])
def test_parameters_are_read_by_the_schema_of_the_object(schema):
    """A string stays one, whatever it looks like."""
    text = "<tool_call>\n<function=plain>\n<parameter=s>\n128\n</parameter>\n</function>\n</tool_call>"
    known = (Tool("plain", None, schema),)
    assert joined(split(named_family("qwen3_coder").parse, [text], known=known))[2] == [
        ("plain", '{"s": "128"}')
    ]


def test_parameters_of_several_objects():
    one, two = {"properties": {"a": {"type": "string"}}}, {"properties": {"b": {"type": "integer"}}}
    for key in ("anyOf", "oneOf", "allOf"):
        schema = argument_schema({key: [one, two]})
        assert schema is not None
        assert [kinds_of(schema, name) for name in "abc"] == [{"string"}, {"integer"}, frozenset()]


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"properties": S}, "object"),
        ({"required": ["a"]}, "object"),
        ({"patternProperties": {}}, "object"),
        ({"items": {}}, "array"),
        ({"minLength": 1, "pattern": "a"}, "string"),
        ({"exclusiveMaximum": 3}, "number"),
        ({"minimum": 1, "minLength": 1}, None),
        ({"type": ["object", "null"], "properties": S}, None),
        ({"enum": [1], "minimum": 0}, None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "minimum": 0}, None),
        ({"$ref": "#/$defs/A", "minimum": 0}, None),
        ({"properties": S, "anyOf": [{"required": ["s"]}, {"required": ["t"]}]}, "object"),
        ({"properties": S, "allOf": [{"$ref": "#/$defs/A"}]}, "object"),
        ({"properties": S, "anyOf": [{"type": "object"}, {"type": "null"}]}, None),
        ({"title": "t"}, None),
    ],
    ids=str,
)
def test_implied_types(schema, kind):
    assert implied_type(schema) == kind


def test_types_are_told_at_every_depth_but_beside_a_type_of_the_whole():
    part = {"properties": S}
    whole = typed(
        {"properties": {"a": part, "b": {"items": part}}, "$defs": {"A": {"anyOf": [part, {"type": "null"}]}}}
    )
    assert whole["type"] == whole["properties"]["a"]["type"] == "object"
    assert whole["properties"]["b"] == {"type": "array", "items": {"type": "object", **part}}
    assert whole["$defs"]["A"]["anyOf"][0]["type"] == "object"
    named = {"type": ["object", "null"], "allOf": [part, part]}
    assert typed(named) == named


@pytest.mark.parametrize("opened", [None, False])
def test_an_answer_of_a_schema_with_fields_is_an_object(opened):
    fields = {"a": {"properties": {"b": {"type": "integer"}}}, "c": {"items": {"type": "integer"}}}
    for schema in ({"properties": fields}, {"$ref": "#/$defs/X", "$defs": {"X": {"properties": fields}}}):
        asked = StructuredOutputs(json=schema, disable_additional_properties=opened)
        held = grammar_of(SamplingFields(structured_outputs=asked))
        assert held is not None
        answer = Drawing(f"start: %json {held.text}")
        assert answer.takes('{"a":{"b":1},"c":[1]}')
        for value in ("128", "null", "[]", '{"a":1}', '{"c":"x"}'):
            assert not answer.takes(value)
