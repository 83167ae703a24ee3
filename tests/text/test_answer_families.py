"""Which family a template is of, and that its parser reads what its templates write."""

from __future__ import annotations

import json

import pytest
from family_templates import HARMONY, TEMPLATES
from formats import format_of
from splitting import joined, split

from firelane.text.parsers import REASONING_ALIASES, REASONING_PARSERS, TOOL_ALIASES, TOOL_PARSERS
from firelane.text.rendering.template import ChatTemplate
from firelane.text.tools.families import READERS, named_family
from firelane.text.tools.tool import Tool

CHANNELS = ("harmony", "muse_glimmer")
SCHEMA = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "n": {"type": "number"},
        "o": {"type": "object"},
        "l": {"type": "array"},
        "b": {"type": "boolean"},
    },
}
TOOL = Tool("f", None, SCHEMA)
VALUES = {"s": "a 'b' é🔥\n<c> 5", "n": 1.5, "o": {"k": {"x": 1}}, "l": ["1", 2], "b": False}


def rendered(template: str, calls: int, values: dict) -> str:
    """The assistant's part of a conversation."""
    function = {"name": "f", "arguments": values}
    made = [{"id": f"functions.f:{i}", "type": "function", "function": function} for i in range(calls)]
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": made},
        {"role": "tool", "content": "!", "tool_call_id": "functions.f:0"},
    ]
    shown, variables = format_of(template).history(messages, [TOOL.definition()])
    text = ChatTemplate(template, {}).render(shown, variables)
    return text.partition("<|assistant|>")[2].partition("<|tool|>")[0]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_tells_its_family(name):
    assert format_of(TEMPLATES[name]).line == f"{name} (tools, reasoning)"


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_that_a_template_writes_are_read(name):
    family = format_of(TEMPLATES[name]).family
    single = ("llama3_json", "granite", "phi4_mini_json", "nemotron_json", "llama4_pythonic", "lfm2")
    count = 1 if name in single else 2
    values = VALUES | ({"l": ["a", 2]} if name == "minimax_m3" else {})  # it writes "1" and 1 alike
    text = rendered(TEMPLATES[name], count, values)
    content, _, calls = joined(split(family.parse, list(text), known=(TOOL,)))
    assert not content.strip()
    assert [called for called, _ in calls] == ["f"] * count
    assert all(json.loads(arguments) == values for _, arguments in calls)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (HARMONY, "harmony"),
        ("x", "hermes"),
        ("{# [func_name1(params_name1=params_value1)] #}", "llama4_pythonic"),
        ("{{ '<|tool|>' + (messages[0]['tools'] or '') + '<|/tool|>' }}", "phi4_mini_json"),
        ('<|python_start|> {"name": "f", "parameters": dictionary of argument name}', "llama3_json"),
        ("<|tool_list_start|>", "lfm2"),
        ("{# <tool_calls>[{...}]</tool_calls> #}", "apriel"),
        ("{# <tool_calls>\n{...}\n</tool_calls> #}", "minimax_m1"),
    ],
)
def test_other_marks(template, name):
    assert format_of(template).name == name


def test_every_name_is_known():
    for name in (*TOOL_PARSERS[2:], *TOOL_ALIASES):
        assert named_family(name).name == TOOL_ALIASES.get(name, name)
    for name in (*REASONING_PARSERS[2:], *REASONING_ALIASES):
        named = REASONING_ALIASES.get(name, name)
        form = format_of("", "none", name)
        assert (form.marks is None) is (named in CHANNELS)
        assert (form.reader is not None) is (named in READERS)


@pytest.mark.parametrize(
    ("template", "close"),
    [
        ("<think>", "</think>"),
        ("{{ '</think>' }}", "</think>"),
        ("[THINK]", "[/THINK]"),
        ("<seed:think>", "</seed:think>"),
        ("'<|channel>thought'", "<channel|>"),
    ],
)
def test_marks_of_reasoning(template, close):
    marks = format_of(template).marks
    assert marks is not None
    assert marks.close == close
    assert marks.begun(f"hm {marks.open}{marks.label}")
    assert not marks.begun(f"{marks.open}x{marks.close}")
    assert format_of(template, "auto", "none").marks is None


def test_no_marks_of_reasoning():
    assert format_of(HARMONY).marks is None
