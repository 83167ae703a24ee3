"""Values that formats write plainly or as Python does, as JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.text.tools.parameters import as_json, kinds, kinds_of
from firelane.text.tools.python_value import LiteralEnd, python_as_json

ROOT = {
    "properties": {
        "a": {"$ref": "#/$defs/A~1B"},
        "b": {"anyOf": [{"type": "string"}, {"const": 1}]},
        "c": {"enum": ["x", None]},
        "d": {"oneOf": [{"type": "string"}, {}]},
        "e": {"type": ["integer", "null"]},
        "f": {"$ref": "#/nowhere"},
        "g": {"$ref": "#/properties/g"},
        "h": True,
    },
    "$defs": {"A/B": {"type": "array"}},
    "additionalProperties": {"type": "boolean"},
}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a", {"array"}),
        ("b", {"string", "integer"}),
        ("c", {"string", "null"}),
        ("d", set()),
        ("e", {"integer", "null"}),
        ("f", set()),
        ("g", set()),
        ("h", set()),
        ("other", {"boolean"}),
    ],
)
def test_types_that_a_schema_allows(name, found):
    assert kinds_of(ROOT, name) == found


def test_types_of_a_schema_that_refers_to_itself():
    loop = {"$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}}
    assert kinds({"$ref": "#/$defs/A"}, loop) == set()


@pytest.mark.parametrize(
    ("text", "allowed", "made"),
    [
        ("5", {"integer"}, "5"),
        (" 5 ", {"number"}, "5"),
        ("5", {"string", "integer"}, "5"),
        ("5", {"string", "number"}, "5"),
        ("5.5", {"string", "integer"}, '"5.5"'),
        ("null", {"string", "null"}, "null"),
        ("None", {"string", "null"}, '"None"'),
        ("None", {"null"}, "null"),
        ("True", {"boolean"}, "true"),
        ("True", set(), '"True"'),
        ("yes", {"boolean"}, '"yes"'),
        ("NaN", {"number"}, '"NaN"'),
        ('"q"', set(), '"\\"q\\""'),
        ('"q"', {"object"}, '"q"'),
        ("[1,  2]", set(), "[1,  2]"),
        ("[" * 9999, set(), json.dumps("[" * 9999)),
        ("", set(), '""'),
        ("9" * 5000, {"integer"}, json.dumps("9" * 5000)),
    ],
)
def test_plain_values(text, allowed, made):
    assert as_json(text, frozenset(allowed)) == made


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(JSON)
def test_whatever_python_writes(value):
    """Values are read as `repr` writes them, with both kinds of quotes, and as JSON."""
    for text in (repr(value), json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert json.loads(python_as_json(text)) == value
        assert LiteralEnd().feed(text) is None
        assert LiteralEnd().feed(f"{text}, b=") == len(text)
        assert LiteralEnd().feed(f"{text})") == len(text)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("(1, 2,)", "[1, 2]"),
        ("+1", "1"),
        ("-.5", "-0.5"),
        ("1.", "1.0"),
        ("1.e5", "1.0e5"),
        ("0x1f", '"0x1f"'),
        ("name", '"name"'),
        ("{1: 2}", '"{1: 2}"'),
        ("{1, 2}", '"{1, 2}"'),
        (r"'\x41\N'", r'"\u0041\\N"'),
        ("'\\\n'", '""'),
        (r"'\U0001f525\/'", '"🔥/"'),
        (r"'\Uffffffff'", r'"\\Uffffffff"'),
        ("'a' 'b'", "\"'a' 'b'\""),
        ("'a", '"\'a"'),
        ("f(1)", '"f(1)"'),
        ("", '""'),
    ],
)
def test_python_values(text, made):
    assert python_as_json(text) == made
