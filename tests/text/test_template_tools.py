"""Tools in templates of the families' kinds."""

from __future__ import annotations

import pytest
from formats import format_of

from firelane.errors import RequestError
from firelane.text.rendering.template import ChatTemplate
from firelane.text.tools.families import named_family
from firelane.text.tools.tool import Tool

TOOL = Tool(
    "weather", "tells it", {"type": "object", "properties": {"city": {"type": "string"}}}
).definition()
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"city": "Bern"}}}
LOOP = [
    {"role": "user", "content": "well?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "12", "tool_call_id": "abcdefghi"},
]
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content + '' }}{% endfor %}"
OBJECTS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
)
TEXTS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.function.name + ':' + c.function.arguments }}{% endfor %}{% endfor %}"
)


IN_SYSTEM = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% if m.role == 'system' and 'tools' in m and m.tools is not none %}"
    "<|tool|>{{ m.tools + '' }}<|/tool|>{% endif %}{% endfor %}"
)


def render(source: str, messages=LOOP, tools=(TOOL,)) -> str:
    shown, variables = format_of(source).history(list(messages), list(tools))
    return ChatTemplate(source, {}).render(shown, variables)


def test_a_template_that_takes_objects():
    text = render(OBJECTS)
    assert '{"name": "weather", "arguments": {"city": "Bern"}}' in text
    assert "<tool>12" in text
    assert text.startswith('[{"type": "function"')


def test_a_template_that_takes_texts():
    assert 'weather:{"city": "Bern"}' in render(TEXTS)


def test_a_template_that_knows_no_tools():
    text = render(PLAIN)
    assert text.startswith("<system>You may call these functions")
    assert '<assistant><tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>' in text
    assert text.endswith("<user><tool_response>\n12\n</tool_response>")


def test_a_template_that_reads_tools_in_the_system_message():
    text = render(IN_SYSTEM)
    assert text.startswith('<system><|tool|>[{"name": "weather", "description": "tells it"')
    call = 'functools[{"name": "weather", "arguments": {"city": "Bern"}}]'
    assert text.endswith(f"<|/tool|><user>well?<assistant>{call}<tool>12")
    named = render(IN_SYSTEM, [{"role": "system", "content": "Be brief."}, *LOOP])
    assert named.startswith("<system>Be brief.<|tool|>[")
    assert render(IN_SYSTEM, tools=()) == f"<user>well?<assistant>{call}<tool>12"


def test_earlier_calls_without_tools_now():
    text = render(PLAIN, tools=())
    assert text.startswith("<user>well?<assistant><tool_call>")


def test_messages_without_tools_are_left_alone():
    plain = [{"role": "user", "content": "a"}]
    assert render(PLAIN, plain, ()) == "<user>a"


def test_messages_are_not_changed():
    before = str(LOOP)
    render(PLAIN)
    render(TEXTS)
    assert str(LOOP) == before


def test_a_template_that_refuses():
    with pytest.raises(RequestError, match="only one"):
        render(OBJECTS + "{% if messages | length > 2 %}{{ raise_exception('only one') }}{% endif %}")


@pytest.mark.parametrize(
    ("option", "template", "name"),
    [
        ("auto", "x", "hermes"),
        ("auto", "x <tool_call> y", "hermes"),
        ("auto", "{{ tools | tojson }} {# [TOOL_CALLS] #}", "mistral"),
        ("auto", "{{ '[TOOL_CALLS] [' }}", "mistral"),
        ("auto", "<|python_tag|>", "llama3_json"),
        ("auto", '{"name": function name, "parameters": dictionary of argument name}', "llama3_json"),
        ("hermes", "[TOOL_CALLS]", "hermes"),
        ("llama3_json", "", "llama3_json"),
        ("mistral", "", "mistral"),
    ],
)
def test_families(option, template, name):
    form = format_of(template, option)
    assert form.family is not None
    assert form.name == form.family.name == name


def test_no_family():
    form = format_of("[TOOL_CALLS]", "none")
    assert form.family is None
    assert form.line == "none"


def test_an_unknown_format():
    form = format_of(OBJECTS.replace("c.function", "'%' + c.function.name + '%' + c.function.arguments"))
    assert form.family is None
    assert form.line.startswith("unknown: calls of tools will not be read")


def test_ids():
    assert len(named_family("mistral").new_id()) == 9
    assert named_family("mistral").new_id().isalnum()
    assert named_family("hermes").new_id().startswith("call_")
