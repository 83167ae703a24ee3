"""The format of a model's chats is found from its template, and tells how calls and marks are written."""

from __future__ import annotations

import json

import pytest
from family_templates import TEMPLATES
from formats import evidence_of, format_of
from splitting import joined, split

from firelane.doctor.chat import format_lines
from firelane.text.chat.format_search import CLOSINGS, Evidence, find_chat_format
from firelane.text.rendering.template import ChatTemplate
from firelane.text.rendering.template_probe import TemplateProbe
from firelane.text.tools.families import named_family
from firelane.text.tools.tool import Tool

LOOKUP = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}
ASKED = [{"role": "user", "content": "Where?"}]
CALLS = [("lookup", {"s": "a 'b'\n5", "n": 1.5, "l": ["x", 2], "o": {"k": True}}), ("lookup", {})]
KNOWN = (
    Tool(
        "lookup",
        None,
        {
            "type": "object",
            "properties": {
                "s": {"type": "string"},
                "n": {"type": "number"},
                "l": {"type": "array"},
                "o": {"type": "object"},
            },
        },
    ),
)
ROLES = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
NAMES_ONLY = "{% for t in tools %}{{ t.function.name }}: {{ PART }}{% endfor %}" + ROLES


def prompt(source: str, tools=(LOOKUP,), messages=ASKED) -> str:
    shown, variables = format_of(source).history(list(messages), list(tools))
    return ChatTemplate(source, {}).render(shown, variables | {"add_generation_prompt": True})


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_format_reads_what_it_writes(name):
    family = named_family(name, "[ARGS]")
    calls = CALLS[: 1 if name == "harmony" else 2]
    content, _, read = joined(split(family.parse, list(family.written(calls)), known=KNOWN))
    assert not content.strip()
    assert [(called, json.loads(arguments)) for called, arguments in read] == calls


@pytest.mark.parametrize("end", [":opensource", ""])
def test_tags_of_hunyuan_end_as_its_template_has_them(end):
    family = format_of(TEMPLATES["hy3"].replace(":opensource", end)).family
    assert family is not None
    assert family.name == "hy3"
    text = family.written(CALLS)
    assert f"<tool_sep{end}>" in text
    _, _, read = joined(split(family.parse, list(text), known=KNOWN))
    assert [(name, json.loads(arguments)) for name, arguments in read] == CALLS


@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v31", "minimax_m2"])
def test_tools_are_told_as_calls_are_read(name):
    """A template that shows calls, but no tools."""
    source = TEMPLATES[name].replace("tools | tojson", "''")
    form = format_of(source)
    assert form.line == f"{name} (tools told in a message, reasoning)"
    told = prompt(source)
    assert '"name": "lookup"' in told
    assert form.family.written([("NAME", {"ARGUMENT": "VALUE"})]) in told
    assert "<tool_call>" not in told.replace("minimax:tool_call", "")


def test_marks_that_are_not_in_the_template():
    """Made of pieces, as some templates have them: the output tells."""
    source = (
        TEMPLATES["qwen3_coder"]
        .replace("<tool_call>", "{{ '<tool_' ~ 'call>' }}")
        .replace("<function=", "{{ '<func%s=' | format('tion') }}")
    )
    assert "<function=" not in source
    assert format_of(source).name == "qwen3_coder"


def test_what_the_template_writes_counts_more_than_its_comments():
    source = "{# [TOOL_CALLS] <|channel|><|message|> #}" + TEMPLATES["hermes"]
    assert format_of(source).name == "hermes"


def test_calls_in_a_form_that_nobody_reads():
    source = TEMPLATES["hermes"].replace("<tool_call>", "<<").replace("</tool_call>", ">>")
    form = format_of(source, tokens=["<tool_call>"])
    assert form.family is None
    assert form.line == (
        "unknown (reasoning): calls of tools will not be read; name their format with --tool-parser"
    )
    assert form.abilities == ["thinking"]
    assert any("no parser" in line for line in format_lines(form))


@pytest.mark.parametrize(
    "source", ["{{ 'functools[' + day }}" + ROLES, "{{ raise_exception('no') }}" + ROLES]
)
def test_a_template_that_fails_has_no_format(source):
    """Whatever marks stand in it: no conversation can be shown."""
    form = format_of(source)
    assert form.family is None
    assert not form.thinks
    assert form.line.startswith("unknown: calls of tools will not be read")
    assert any("fails" in line for line in format_lines(form))
    assert format_of(source.replace("+ day", "").replace("raise_exception('no')", "'no'")).family is not None


@pytest.mark.parametrize("tokens", [["<|tool_call_start|>"], ["<|tool_call_start|>", "<think>", "</think>"]])
def test_tokens_of_the_vocabulary(tokens):
    """A template that shows tools, but no calls."""
    source = "{{ tools | tojson if tools }}" + ROLES
    assert format_of(source).name == "unknown"
    form = format_of(source, tokens=tokens)
    assert form.line == "lfm2 (tools)"
    form = format_of(ROLES, tokens=tokens)
    assert form.thinks is (len(tokens) > 1)


def test_tools_of_another_variable():
    source = "{{ xml_tools | tojson if xml_tools }}" + ROLES
    assert '"name": "lookup"' in prompt(source)
    assert "You may call" not in prompt(source)


@pytest.mark.parametrize(
    ("part", "gap"),
    [
        ("'' + t.function.description", "description"),
        ("t.function.parameters.properties.items() | length", "properties"),
        (
            "{% for p in t.function.parameters.properties.values() %}{{ '' + p.description }}{% endfor %}",
            "descriptions of parameters",
        ),
    ],
)
def test_parts_that_a_template_cannot_do_without(part, gap):
    source = NAMES_ONLY.replace("{{ PART }}", part if "{%" in part else f"{{{{ {part} }}}}")
    assert gap in evidence_of(source).facts.gaps
    bare = {"name": "lookup", "parameters": {"type": "object", "properties": {"a": {}}}}
    if gap == "properties":
        bare = {"name": "lookup", "parameters": {}}
    assert "lookup: " in prompt(source, [{"type": "function", "function": bare}])


def test_a_template_that_does_without():
    """Nothing is added to what it shows."""
    assert "description" not in prompt("{{ tools | tojson if tools }}" + ROLES)


def test_a_template_without_a_system_role():
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + ROLES
    told = prompt(source)
    assert told.startswith("<user>You may call these functions")
    assert told.endswith("\n\nWhere?")


@pytest.mark.parametrize("name", TEMPLATES)
def test_few_renders_find_it(name):
    """Each is a trip to another process, before the first request."""
    template, count = ChatTemplate(TEMPLATES[name], {}), 0

    def render(messages, variables):
        nonlocal count
        count += 1
        return template.render(messages, variables)

    facts = TemplateProbe(render, template.variables).facts(CLOSINGS)
    find_chat_format(Evidence(TEMPLATES[name], facts, lambda _: False, render))
    assert count <= 32
