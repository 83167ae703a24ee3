"""Conversations in whatever order, in templates with guards: no text is lost, none is refused."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from formats import format_of
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.text.chat.chat_format import ModelChatFormat
from firelane.text.history import HistoryShape, arranged, joined
from firelane.text.rendering.template import ChatTemplate

CALLS = (
    "{% for c in m.tool_calls or [] %}<tool_call>{{ {'name': c.function.name, 'arguments': "
    "c.function.arguments} | tojson }}</tool_call>{% endfor %}"
)
TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
END = "{% if add_generation_prompt %}<a>{% endif %}"
NOT_FIRST = "{% if m.role == 'system' and not loop.first %}"
TURNS = "{% set ns = namespace(n=0) %}"
GUARDS = {
    "system first": TOOLS
    + "{% for m in messages %}"
    + NOT_FIRST
    + "{{ raise_exception('first') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}" + CALLS + "{% endfor %}" + END,
    "late system lost": TOOLS + "{% for m in messages %}" + NOT_FIRST + "{% continue %}{% endif %}"
    "<{{ m.role }}>{{ m.content }}" + CALLS + "{% endfor %}" + END,
    "turns, no tools": "{% if messages[0].role == 'system' %}{{ messages[0].content }}"
    "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}" + END,
    "no system": "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}"
    "{{ raise_exception('role') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}" + END,
    "system lost": TOOLS
    + "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}"
    + CALLS
    + "{% endfor %}"
    + END,
    "one call, no text beside it": TOOLS + "{% for m in messages %}{% if m.tool_calls %}"
    "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}<{{ m.role }}>"
    + CALLS
    + "{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
    + END,
    "first call alone": TOOLS + "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}"
    "{% set m = {'tool_calls': m.tool_calls[:1]} %}" + CALLS + "{% endif %}{% endfor %}" + END,
    "turns beside tools, short ids": TOOLS + TURNS + "{% for m in messages %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.n % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{% elif m.role == 'system' and not loop.first %}"
    "{{ raise_exception('first') }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('id') }}{% endif %}"
    "{% endfor %}<{{ m.role }}>{{ m.content }}" + CALLS + "{% endfor %}" + END,
    "system beside the last user alone": TOOLS
    + "{% for m in messages %}{% if loop.last and m.role == 'user' %}"
    "{{ messages[0].content if messages[0].role == 'system' }}{% endif %}{% if m.role != 'system' %}"
    "<{{ m.role }}>{{ m.content }}" + CALLS + "{% endif %}{% endfor %}" + END,
    "descriptions": "{% for t in tools or [] %}{{ t.function.name + t.function.description }}"
    "{% for p in t.function.parameters.properties.values() %}{{ '' + p.description }}{% endfor %}{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}" + CALLS + "{% endfor %}" + END,
    "descriptions of parameters": "{% for t in tools or [] %}{{ t.function.name }}"
    "{% for p in (t.function.parameters.properties or {}).values() %}{{ '' + p.description }}{% endfor %}"
    "{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}" + CALLS + "{% endfor %}" + END,
    "late system lost beside tools": TOOLS
    + "{% for m in messages %}{% if tools and m.role == 'system' and not loop.first %}{% continue %}"
    "{% endif %}"
    "<{{ m.role }}>{{ m.content }}" + CALLS + "{% endfor %}" + END,
    "contents in parts": TOOLS + "{% for m in messages %}<{{ m.role }}>"
    "{% for p in m.content %}{{ p['text'] if p['type'] == 'text' }}{% endfor %}"
    + CALLS
    + "{% endfor %}"
    + END,
    "one part, no calls": TOOLS + "{% for m in messages %}{% if m.role != 'tool' %}<{{ m.role }}>"
    "{{ m.content[0].text + '' }}{% endif %}{% endfor %}" + END,
    "no tools are None": "{% if tools is not none %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}" + CALLS + "{% endfor %}" + END,
    "no tools are none": "{% for t in tools %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}" + CALLS + "{% endfor %}" + END,
    "ids of nine letters or more": TOOLS + "{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "{% if c.id | length < 9 %}{{ raise_exception('id') }}{% endif %}{% endfor %}"
    "<{{ m.role }}>{{ m.content }}" + CALLS + "{% endfor %}" + END,
    "ids name functions": TOOLS + "{% for m in messages %}<{{ m.name or m.role }}>"
    "{{ 'of ' + m.tool_call_id if m.role == 'tool' }}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}"
    "<|tool_call_end|>{% endfor %}{% endfor %}" + END,
    "results have names": TOOLS + "{% for m in messages %}<{{ m.role }}>"
    "{% if m.role == 'tool' %}{{ 'of ' + m.name }}{% endif %}{{ m.content }}" + CALLS + "{% endfor %}" + END,
}
SCHEMA = {"type": "object", "properties": {"key": {"type": "string"}}}
DEFINITION = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
ROLES = st.lists(st.sampled_from(["system", "user", "user", "assistant", "calls"]), max_size=7)


@cache
def known(name: str) -> tuple[ModelChatFormat, ChatTemplate]:
    return format_of(GUARDS[name]), ChatTemplate(GUARDS[name], {})


def prompt(name: str, messages: list[dict[str, Any]]) -> str:
    form, template = known(name)
    told, variables = form.history(messages, [DEFINITION])
    return template.render(told, {"add_generation_prompt": True} | variables)


def conversation(roles: list[str], calls: int) -> list[dict[str, Any]]:
    """The user speaks first, but for the system; each text is a mark."""
    made: list[dict[str, Any]] = []

    def mark() -> str:
        return f"mark{len(made)}x"

    lead = next((i for i, role in enumerate(roles) if role != "system"), len(roles))
    for role in [*roles[:lead], "user", *roles[lead:]]:
        if role != "calls":
            made.append({"role": role, "content": mark()})
            continue
        ids = [f"call_{len(made)}_{i}" for i in range(calls)]
        functions = [{"name": "look", "arguments": {"key": f"{mark()}a{i}"}} for i in range(calls)]
        told = [{"id": one, "type": "function", "function": f} for one, f in zip(ids, functions, strict=True)]
        made.append({"role": "assistant", "content": mark(), "tool_calls": told})
        for i, one in enumerate(ids):
            made.append({"role": "tool", "tool_call_id": one, "content": f"{mark()}a{i}"})
    return made


@pytest.mark.parametrize("name", GUARDS)
@settings(max_examples=30, deadline=None)
@given(roles=ROLES, calls=st.integers(1, 2))
def test_every_text_is_in_the_prompt(name, roles, calls):
    messages = conversation(roles, calls)
    marks = set(re.findall(r"mark\d+x(?:a\d)?", repr(messages)))
    assert marks <= set(re.findall(r"mark\d+x(?:a\d)?", prompt(name, messages)))


def test_leading_system_messages_are_one():
    talk = [{"role": "system", "content": text} for text in ("a", "b")]
    talk.append({"role": "user", "content": "c"})
    assert prompt("system first", talk).startswith(f"{known('system first')[1].render([], {})}[")
    assert "<system>a\n\nb<user>c" in prompt("system first", talk)


def test_a_later_system_message_stays_a_systems_where_the_template_takes_it():
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    talk = [{"role": role, "content": role[0]} for role in ("user", "assistant", "system", "user")]
    told, _ = format_of(template).history(talk, [])
    assert told == talk


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_has_the_field_that_the_template_shows(field):
    template = TOOLS + "{% for m in messages %}<{{ m.role }}>({{ m.FIELD }}){{ m.content }}" + CALLS
    form = format_of(template.replace("FIELD", field) + "{% endfor %}" + END)
    talk = conversation(["assistant"], 1)
    talk[1]["reasoning_content"] = "thought"
    assert form.history(talk, [])[0][1][field] == "thought"


def test_a_result_and_what_the_user_says_then_are_one_message():
    talk = conversation(["calls", "user"], 2)
    text = prompt("turns, no tools", talk)
    assert text.count("<user>") == 2
    result = "<tool_response>\n{}\n</tool_response>"
    assert f"<user>{result.format('mark2xa0')}\n\n{result.format('mark3xa1')}\n\nmark4x" in text


def test_ids_of_other_servers_become_short_and_stay_distinct():
    shape = HistoryShape(short_ids=True)
    call = {"type": "function", "function": {"name": "look", "arguments": {}}}
    ids = ["call_1", "call_2", "abcDEF123"]
    talk = [{"role": "assistant", "content": "", "tool_calls": [call | {"id": one} for one in ids]}]
    talk += [{"role": "tool", "content": "", "tool_call_id": one} for one in ids]
    made = arranged(talk, shape)
    short = [call["id"] for call in made[0]["tool_calls"]]
    assert short == [message["tool_call_id"] for message in made[1:]]
    assert short[2] == ids[2]
    assert len({*short}) == 3
    assert all(re.fullmatch(r"[a-zA-Z0-9]{9}", one) for one in short)


@pytest.mark.parametrize("name", GUARDS)
def test_a_conversation_without_tools_is_rendered(name):
    form, template = known(name)
    told, variables = form.history(conversation(["system", "assistant"], 1), [])
    assert "mark2x" in template.render(told, variables)


def test_no_tools_are_none_as_for_transformers_but_where_the_template_fails_on_it():
    assert known("no tools are None")[0].history([], [])[1] == {"tools": None}
    assert known("no tools are none")[0].history([], [])[1] == {}


def test_ids_of_other_servers_name_their_function_where_the_template_shows_nothing_else_of_it():
    form = known("ids name functions")[0]
    assert form.line == "kimi_k2 (tools)"
    talk = conversation(["calls", "calls"], 2)
    own = {"id": "functions.look:9", "type": "function", "function": {"name": "look", "arguments": {}}}
    talk += [{"role": "assistant", "content": "", "tool_calls": [own]}]
    told, _ = form.history(talk, [DEFINITION])
    ids = [call["id"] for message in told for call in message.get("tool_calls", ())]
    assert ids == [*(f"functions.look:{i}" for i in range(4)), "functions.look:9"]
    assert [m["tool_call_id"] for m in told if m["role"] == "tool"] == ids[:4]
    assert "functions.look:3<|tool_call_argument_begin|>" in prompt("ids name functions", talk)
    assert not known("results have names")[0].shape.named_ids


def test_a_conversation_in_order_is_as_it_was():
    talk = conversation(["system", "assistant", "user"], 1)
    shape = HistoryShape(alternates=True, results_end=True)
    assert joined(arranged(talk, shape), shape) == talk
