"""GLM-4-0414 and GLM-Z1: how their templates tell of the format, earlier turns, and strict tools."""

from __future__ import annotations

import json

import pytest
from drawing import FIRST_SPECIAL, Drawing
from formats import format_of
from splitting import joined, split

from firelane.text.chat.reasoning import THINK, with_reasoning
from firelane.text.rendering.template import ChatTemplate
from firelane.text.tools.families import named_family
from firelane.text.tools.tool import Tool

TEMPLATE = (
    "{% if tools %}<|system|>{{ tools | tojson }}请使用 Json 格式表示调用的参数。{% endif %}"
    "{% for m in messages %}{% set meta = m.get('metadata', '') %}"
    "{% if m.role != 'tool' %}<|{{ m.role }}|>{{ meta }}\n{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOOL = Tool("look", None, {"type": "object", "properties": {"n": {"type": "integer"}}}, strict=True)
MARKS = ("<|assistant|>", "<think>", "</think>")
CALLS = [
    {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": said}}
    for i, (name, said) in enumerate([("look", {"n": 7}), ("wait", '{"é": ')])
]
TALK = [
    {"role": "user", "content": "Q"},
    {"role": "assistant", "content": "Well.", "tool_calls": CALLS},
    {"role": "tool", "content": "R1", "tool_call_id": "c0"},
    {"role": "tool", "content": "R2", "tool_call_id": "c1"},
    {"role": "assistant", "content": "", "tool_calls": CALLS[:1]},
    {"role": "tool", "content": "R3", "tool_call_id": "c0"},
]


def test_earlier_calls_are_messages_with_metadata():
    form = format_of(TEMPLATE)
    assert form.line == "glm4 (tools)"
    shown, variables = form.history(TALK, [TOOL.definition()])
    text = ChatTemplate(TEMPLATE, {}).render(shown, variables)
    assert text.partition("<|user|>")[2] == (
        '\nQ<|assistant|>\nWell.<|assistant|>look\n{"n": 7}<|assistant|>wait\n{"é": '
        '<|observation|>\nR1<|observation|>\nR2<|assistant|>look\n{"n": 7}<|observation|>\nR3'
    )


def test_names_are_not_lost_where_a_template_has_no_metadata():
    source = TEMPLATE.replace("metadata", "other")
    shown, variables = format_of(source, "glm4").history(TALK, [TOOL.definition()])
    text = ChatTemplate(source, {}).render(shown, variables)
    assert 'Well.\nlook\n{"n": 7}<|assistant|>wait\n' in text
    assert "R1" in text


def test_what_is_written_is_read():
    family = named_family("glm4")
    calls = [("f", {"a": "é\n{"}), ("g", {})]
    content, _, read = joined(split(family.parse, list(family.written(calls))))
    assert not content
    assert [(name, json.loads(said)) for name, said in read] == calls


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_call_behind_reasoning(size):
    text = 'Hm,\nf\n{}.</think>\nf\n{"a": 1}'
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    parse = with_reasoning(named_family("glm4").parse, THINK)
    assert joined(split(parse, pieces, in_reasoning=True)) == ("", "Hm,\nf\n{}.", [("f", '{"a": 1}')])


def test_text_leaves_as_soon_as_it_names_no_tool():
    family = named_family("glm4")
    assert joined(split(family.parse, ["\nOf"], end=False))[0] == "\nOf"
    assert joined(split(family.parse, ["f\n"], end=False))[0] == ""


@pytest.mark.parametrize("marks", [(), MARKS], ids=["text", "tokens"])
def test_strict_tools_in_messages(marks):
    ids = {mark: FIRST_SPECIAL + i for i, mark in enumerate(marks)}
    rules = named_family("glm4").free_rules([TOOL, Tool("wait")], ids.get, MARKS[1:], parallel=True)
    grammar = Drawing(rules, marks)
    for text in ("\nlook here", 'look\n{"n": 1}', "lookup\n{}", ""):
        assert grammar.takes(text), text
    several = '\nSo.<|assistant|>\nwait\n{"x": 1}<|assistant|>\nYes'
    assert grammar.takes(several) is bool(marks)
    for text in ('look\n{"n": "', '\nSo.<|assistant|> look \n{"n": "', "wait\n[", "\nlook\nx"):
        assert not grammar.begins(text), text
    if marks:
        assert grammar.takes('I think.\nlook\n</think>\n\nlook\n{"n": 1}')
        assert not grammar.begins('<think>I</think>look\n{"n": "')
