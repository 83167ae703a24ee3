"""Calls in JSON that models write nearly right, in every format that writes JSON, however the text is cut."""

from __future__ import annotations

import json

import pytest
from splitting import Joined, joined, split

from firelane.text.tools.families import named_family
from firelane.text.tools.json_calls.json_text import JsonText, mended_object
from firelane.text.tools.tool import Tool

KNOWN = (Tool("f"), Tool("g"))
WAYS = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>',
    "llama3_json": '{"name": "f", "parameters": %s}',
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": %s}]',
    "phi4_mini_json": 'functools[{"name": "f", "arguments": %s}]',
    "nemotron_json": '<TOOLCALL>[{"name": "f", "arguments": %s}]</TOOLCALL>',
    "harmony": "<|channel|>commentary to=functions.f <|constrain|>json<|message|>%s<|call|>",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n%s\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "functionary_v31": "<function=f>%s</function>",
    "kimi_k2": "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>%s<|tool_call_end|>",
}


def read(name: str, text: str) -> Joined:
    family = named_family(name)
    assert family is not None
    whole = joined(split(family.parse, [text], known=KNOWN))
    assert joined(split(family.parse, list(text), known=KNOWN)) == whole
    for place in range(len(text)):
        assert joined(split(family.parse, [text[:place], text[place:]], known=KNOWN)) == whole
    return whole


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('{"s": "a\nb\tc\r\x01"}', {"s": "a\nb\tc\r\x01"}),
        ('{"s": "\\d+\\\\ \\" \\u00e9 \\/ \\n \\x"}', {"s": '\\d+\\ " é / \n \\x'}),
        ('{"a": [1, 2, ], "b": {"c": 1,\n},}', {"a": [1, 2], "b": {"c": 1}}),
        ('{"a": True, "b": [False,None], "s": "True, None,]"}', {"a": True, "b": [False, None],
                                                                "s": "True, None,]"}),
        ('{"s": "é🔥,}", "n": -1.5e3 , "t": true}', {"s": "é🔥,}", "n": -1500.0, "t": True}),
        ("{}", {}),
        ("{ }", {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", WAYS)
def test_arguments_are_mended(name, written, meant):
    content, _, calls = read(name, WAYS[name] % written)
    assert not content
    assert [(called, json.loads(arguments)) for called, arguments in calls] == [("f", meant)]


@pytest.mark.parametrize("name", WAYS)
def test_what_is_right_stays_to_the_letter(name):
    written = '{"b" :1,"a":  "x,  y" ,\n "c": [ ],"d":nul}'
    assert read(name, WAYS[name] % written)[2] == [("f", written)]


@pytest.mark.parametrize("value", ["[1]", "5", '"Rome"', "true", '"[]"', "[{}]", "{'a'}", "-1.5"])
@pytest.mark.parametrize(
    "name", [name for name in WAYS if name not in ("deepseek_v3", "kimi_k2", "functionary_v31")]
)
def test_what_cannot_be_made_an_object_stays_content(name, value):
    content, _, calls = read(name, WAYS[name] % value)
    if (name, value) == ("harmony", "{'a'}"):
        return  # begun, it cannot be taken back
    assert not calls
    assert value in content


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("{'a': 'it\\'s \"x\"', 'b': [True, None], }", {"a": 'it\'s "x"', "b": [True, None]}),
        (json.dumps('{"a": 1, }'), {"a": 1}),
        ('"{\\"a\\": \n1}"', {"a": 1}),
        ('""', {}),
        ("null", {}),
        ("None", {}),
    ],
)
@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral", "phi4_mini_json", "nemotron_json"])
def test_objects_in_other_clothes(name, value, meant):
    content, _, calls = read(name, WAYS[name] % value)
    assert not content
    assert [(called, json.loads(arguments)) for called, arguments in calls] == [("f", meant)]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('<tool_call>{"name": "f", "arguments": {"a": 1},}</tool_call>', [("f", '{"a": 1}')]),
        ('<tool_call>{"name": "f", }</tool_call>', [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": {"a": [1, {"b": 2</tool_call>',
         [("f", '{"a": [1, {"b": 2}]}')]),
        (
            '<tool_call>{"name": "f", "arguments": {"a": 1}\n<tool_call>{"name": "g", "arguments": {}}'
            "</tool_call>",
            [("f", '{"a": 1}'), ("g", "{}")],
        ),
        (
            '<tool_call>\n<tool_call>{"name": "f", "arguments": {}}</tool_call></tool_call>\n'
            '<tool_call>{"name": "g"}</tool_call>',
            [("f", "{}"), ("g", "{}")],
        ),
    ],
)  # fmt: skip
def test_brackets_and_tags_too_many_and_too_few(text, calls):
    assert read("hermes", text) == ("", "", calls)


def test_lists_with_a_comma_too_many():
    text = '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"a": 1}}, ]'
    assert read("mistral", text) == ("", "", [("f", "{}"), ("g", '{"a": 1}')])


def test_harmony_without_arguments_and_with_text_behind_them():
    head = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
    assert read("harmony", f"{head} <|call|>") == ("", "", [("f", "{}")])
    assert read("harmony", f"{head}{{}} <|call|>") == ("", "", [("f", "{}")])
    assert read("harmony", f"{head}{{}} so<|call|>") == (" so", "", [("f", "{}")])
    assert read("harmony", f"{head}<b>x</b>") == ("<b>x</b>", "", [])


@pytest.mark.parametrize(("text", "rest"), [('{"a": 1, ', ", "), ('{"a": Tr', "Tr"), ('{"a": "\\', "\\")])
def test_what_is_held_is_not_lost_where_the_text_ends(text, rest):
    value = JsonText()
    assert value.feed(text) == text.removesuffix(rest)
    assert value.size is None
    assert value.rest() == rest


@pytest.mark.parametrize("text", ["", "[]", "5", "{", '{"a": }', '{"a": 1} x', "{}{}", '"{}"'])
def test_no_object(text):
    assert mended_object(text) is None
