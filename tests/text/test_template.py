from __future__ import annotations

import datetime

import pytest

from firelane.errors import RequestError, TokenizerError
from firelane.text.rendering.template import ChatTemplate

USER = [{"role": "user", "content": "hi"}]


def render(source: str, messages=USER, constants=None, **variables) -> str:
    return ChatTemplate(source, constants or {}).render(messages, variables)


def test_trimmed_blocks_and_loop_variables():
    source = """
{%- for m in messages %}
    {% if loop.first %}
{{ loop.index }}{{ m['role'] }}={{ m.content | trim }}{{ loop.last }}
    {% endif %}
{% endfor %}
"""
    assert render(source, [*USER, *USER]) == "1user=hiFalse\n"


def test_constants_and_variables():
    assert render("{{ bos_token }}{{ x }}", constants={"bos_token": "<s>"}, x=1) == "<s>1"


def test_loop_controls_namespace_and_slices():
    source = "{% set ns = namespace(n=0) %}{% for m in messages[1:] %}"
    source += "{% if m.content == 'x' %}{% break %}{% endif %}"
    source += "{% set ns.n = ns.n + 1 %}{{ m.content ~ ',' }}{% endfor %}{{ ns.n }}"
    assert render(source, [{"content": c} for c in "abxc"]) == "b,1"


def test_tojson_is_plain():
    assert render("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert render("{{ {'b': 1, 'a': 2} | tojson(indent=1) }}") == '{\n "b": 1,\n "a": 2\n}'


def test_strftime_now():
    assert render("{{ strftime_now('%Y') }}") == str(datetime.datetime.now().year)


def test_generation_block():
    assert render("{% generation %}x{{ messages[0].content }}{% endgeneration %}y") == "xhiy"


def test_macro_filters_and_formats():
    assert render("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(1) }}{{ '%s-%02d' % ('a', 3) }}") == "[1]a-03"
    assert render("{{ 'a'.center(5) }}{{ '{}'.format(2) }}{{ [3, 1] | sort | join('/') }}") == "  a  21/3"
    assert render("{{ messages | map(attribute='role') | list }}{{ messages | length }}") == "['user']1"
    assert render("{{ '%d%%' | format(5) }}{{ 'x' * 3 }}{{ [1] + [2] }}{{ 2 ** 3 }}") == "5%xxx[1, 2]8"


def test_raise_exception_reaches_the_client():
    with pytest.raises(RequestError, match="only user roles"):
        render("{{ raise_exception('only user roles') }}")


def test_damaged_template():
    with pytest.raises(TokenizerError, match=r"chat_template\.jinja is not a valid template"):
        ChatTemplate("{% for %}", {}, "chat_template.jinja")
