"""Whole requests to models that put marks around the answer, too."""

from __future__ import annotations

import pytest
from family_templates import TEMPLATES
from test_assistant_formats import FORM, TOOL, USER, chatting

COHERE = (
    "{%- if tools %}<|SYSTEM|>{{ tools | tojson }}{% endif %}{%- for m in messages %}<|{{ m.role }}|>"
    "{%- if m.tool_calls %}<|START_ACTION|>[{%- for c in m.tool_calls %}"
    '{{ "," if not loop.first }}\n    {"tool_call_id": "{{ loop.index0 }}", "tool_name": '
    '"{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}{% endfor %}\n]<|END_ACTION|>'
    "{%- else %}<|START_TEXT|>{{ m.content }}<|END_TEXT|>{% endif %}{% endfor %}"
    "{%- if add_generation_prompt %}<|CHATBOT|><|START_THINKING|>{% endif %}"
)
SPECIALS = (
    *("<|START_THINKING|>", "<|END_THINKING|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    *("<|START_ACTION|>", "<|END_ACTION|>"),
)
CALL = (
    '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}\n]<|END_ACTION|>'
)


@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["alone", "with tools"])
def test_an_answer_loses_its_marks(tools):
    with chatting(COHERE, *SPECIALS) as chat:
        asked = chat.ask(tools=tools)
        assert asked.text.endswith("<|START_THINKING|>")
        assert {chat.id_of("<|START_TEXT|>"), chat.id_of("<|END_THINKING|>")} <= asked.visible_special_ids
        text = "Hm.<|END_THINKING|><|START_TEXT|>Yes <b>.<|END_TEXT|>"
        assert chat.read(asked, text) == ("Yes <b>.", "Hm.", [])


def test_calls_are_read_where_tools_may_be_called():
    with chatting(COHERE, *SPECIALS) as chat:
        text = f"Hm.<|END_THINKING|>{CALL}"
        assert chat.read(chat.ask(tools=[TOOL]), text) == ("", "Hm.", [("f", '{"a": 1}')])
        assert chat.read(chat.ask(tools=[TOOL], tool_choice="none"), text) == (CALL, "Hm.", [])


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"tool_parser": "none"}, ("Yes.", "Hm.")),
        ({"reasoning_parser": "none"}, ("Hm.<|END_THINKING|>Yes.", "")),
    ],
)
def test_marks_are_left_out_unless_no_parser_is_wanted(options, found):
    text = "Hm.<|END_THINKING|><|START_TEXT|>Yes.<|END_TEXT|>"
    with chatting(COHERE, *SPECIALS, **options) as chat:
        assert chat.read(chat.ask(), text) == (*found, [])
    with chatting(COHERE, *SPECIALS, tool_parser="none", reasoning_parser="none") as chat:
        assert chat.ask().splitter is None


def test_answers_that_are_held_begin_behind_the_reasoning():
    with chatting(COHERE, *SPECIALS) as chat:
        content, end = chat.ask(response_format=FORM), chat.id_of("<|END_THINKING|>")
        assert content.text.endswith("<|START_THINKING|>")
        mark = f"<[{chat.id_of('<|START_TEXT|>')}]>"
        assert content.grammar.before.startswith(f"before: thought <[{end}]> SPACE {mark}\n")
        assert chat.read(content, 'Hm.<|END_THINKING|><|START_TEXT|>{"a":1}') == ('{"a":1}', "Hm.", [])
        forced = chat.ask(tools=[TOOL], tool_choice="required")
        assert forced.text.endswith("<|START_THINKING|>")
        assert forced.grammar.before.startswith(f"before: thought <[{end}]> SPACE \n")
        assert chat.read(forced, f"Hm.<|END_THINKING|>{CALL}") == ("", "Hm.", [("f", '{"a": 1}')])
        both = chat.ask(tools=[TOOL], response_format=FORM)
        assert f"body: <[{chat.id_of('<|START_TEXT|>')}]>" in both.grammar.text
        text = '<|END_THINKING|><|START_TEXT|>{"a": 1}'
        assert chat.read(both, text) == ('{"a": 1}', "", [])


def test_a_message_goes_on_within_its_marks():
    with chatting(COHERE, *SPECIALS) as chat:
        messages = [USER, {"role": "assistant", "content": "It is"}]
        asked = chat.ask(messages=messages, continue_final_message=True, add_generation_prompt=False)
        assert asked.text.endswith("<|START_TEXT|>It is")
        assert chat.read(asked, " so.<|END_TEXT|>") == (" so.", "", [])


KIMI = (
    "{%- if thinking is undefined %}{% set thinking = true %}{% endif %}"
    '{%- if tools %}<|open|>message role="system"<|sep|>{{ tools | tojson }}<|close|>message<|sep|>'
    "{% endif %}"
    '{%- for m in messages %}<|open|>message role="{{ m.role }}"<|sep|>'
    "{%- if m.role == 'assistant' %}<|open|>response<|sep|>{{ m.content }}<|close|>response<|sep|>"
    "{%- if m.tool_calls %}<|open|>tools<|sep|>{% for c in m.tool_calls %}"
    '<|open|>call tool="{{ c.function.name }}" index="{{ loop.index }}"<|sep|>'
    "{%- for k, v in c.function.arguments.items() %}"
    '<|open|>argument key="{{ k }}" type="'
    "{{ 'string' if v is string else 'number' }}\"<|sep|>{{ v }}<|close|>argument<|sep|>{% endfor %}"
    "<|close|>call<|sep|>{% endfor %}<|close|>tools<|sep|>{% endif %}"
    "{%- else %}{{ m.content }}{% endif %}<|close|>message<|sep|>{% endfor %}"
    '{%- if add_generation_prompt %}<|open|>message role="assistant"<|sep|>'
    "<|open|>{{ 'think' if thinking else 'response' }}<|sep|>{% endif %}"
)
K3 = ("<|open|>", "<|close|>", "<|sep|>")
RESPONSE, TOOLS = "<|open|>response<|sep|>", "<|open|>tools<|sep|>"


def test_tags_of_several_tokens():
    with chatting(KIMI, *K3) as chat:
        asked = chat.ask(tools=[TOOL])
        assert asked.text.endswith("<|open|>think<|sep|>")
        assert set(map(chat.id_of, K3)) <= asked.visible_special_ids
        call = (
            f'{TOOLS}<|open|>call tool="f" index="1"<|sep|><|open|>argument key="a" type="string"<|sep|>1'
            "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"
        )
        text = f"Hm.<|close|>think<|sep|>{RESPONSE}On it.<|close|>response<|sep|>{call}"
        assert chat.read(asked, text) == ("On it.", "Hm.", [("f", '{"a": "1"}')])
        assert chat.read(chat.ask(), f"Hm.<|close|>think<|sep|>{RESPONSE}Yes.") == ("Yes.", "Hm.", [])


def test_a_response_that_the_prompt_begins():
    """A held answer begins it once, whoever writes it; calls stand behind one that is empty."""
    with chatting(KIMI, *K3) as chat:
        content = chat.ask(response_format=FORM)
        assert content.text.endswith('role="assistant"<|sep|><|open|>think<|sep|>')
        open_, close, sep = (f"<[{chat.id_of(mark)}]>" for mark in K3)
        assert f'{close} "think" {sep} SPACE {open_} "response" {sep}' in content.grammar.before
        calm = chat.ask(response_format=FORM, chat_template_kwargs={"thinking": False})
        assert calm.text.endswith(f'role="assistant"<|sep|>{RESPONSE}')
        assert calm.grammar.before == ""
        for fields in ({"tool_choice": "required"}, {"response_format": FORM}):
            held = chat.ask(tools=[TOOL], chat_template_kwargs={"thinking": False}, **fields)
            assert held.text.endswith('role="assistant"<|sep|>')
            before = f'{open_} "response" {sep} {close} "response" {sep} {open_} "tools" {sep} block'
            assert f"calls: {before}\n" in held.grammar.text
        assert f'body: {open_} "response" {sep}' in held.grammar.text
        assert chat.read(held, f'{RESPONSE}{{"a": 1}}') == ('{"a": 1}', "", [])


def test_an_answer_without_reasoning_goes_on_in_the_response():
    with chatting(KIMI, *K3) as chat:
        asked = chat.ask(chat_template_kwargs={"thinking": False})
        assert asked.text.endswith(RESPONSE)
        assert chat.read(asked, "Yes.<|close|>response<|sep|><|close|>message<|sep|>") == ("Yes.", "", [])


MUSE = (
    "{%- if tools %}<|start|>system<|message|>{{ tools | tojson }}<|eot|>{% endif %}"
    "{%- for m in messages %}{%- if m.tool_calls %}{% set f = m.tool_calls[0].function %}"
    "<|start|>assistant to={{ f.name }}<|message|>"
    '<atem:function_calls>\n<atem:invoke name="{{ f.name }}">\n{% for k, v in f.arguments.items() %}'
    '<atem:parameter name="{{ k }}">{{ v }}</atem:parameter>\n{% endfor %}</atem:invoke>\n'
    "</atem:function_calls><|eot|>{% else %}"
    "<|start|>{{ m.role }}{{ ' to=user' if m.role == 'assistant' }}<|message|>{{ m.content }}<|eot|>"
    "{%- endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
MARKUP = (
    '<atem:function_calls>\n<atem:invoke name="f">\n<atem:parameter name="a">1</atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls>"
)


@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["alone", "with tools"])
def test_a_message_to_self_is_reasoning_whatever_it_quotes(tools):
    with chatting(MUSE, "<|start|>", "<|message|>", "<|eom|>", "<|eot|>") as chat:
        asked = chat.ask(tools=tools)
        assert chat.id_of("<|eot|>") in chat.prompts.eos_ids
        assert {chat.id_of("<|eom|>"), chat.id_of("<|message|>")} <= asked.visible_special_ids
        text = f" to=self<|message|>Or {MARKUP}?<|eom|><|start|>assistant to=user<|message|>No."
        assert chat.read(asked, text) == ("No.", f"Or {MARKUP}?", [])
        made = [("f", '{"a": 1}')] if tools else []
        found = chat.read(asked, f" to=f<|message|>{MARKUP}")
        assert found == ("" if tools else MARKUP, "", made)


def test_messages_that_are_held():
    with chatting(MUSE, "<|start|>", "<|message|>", "<|eom|>", "<|eot|>") as chat:
        content = chat.ask(response_format=FORM)
        assert content.text.endswith("<|start|>assistant")
        assert content.grammar.before.startswith("before: thought* ")
        text = ' to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>{"a":1}'
        assert chat.read(content, text) == ('{"a":1}', "Hm.", [])
        forced = chat.ask(tools=[TOOL], tool_choice="required")
        assert forced.text.endswith("<|start|>assistant")
        assert "calls: thought* call" in forced.grammar.text


def test_reasoning_by_a_mode_with_a_name():
    off = "{{ '</mm:think>' if thinking_mode is defined and thinking_mode == 'disabled' }}"
    with chatting(TEMPLATES["minimax_m3"] + off, "]<]minimax[>[", "<mm:think>", "</mm:think>") as chat:
        assert not chat.ask().text.endswith("</mm:think>")
        assert not chat.ask(chat_template_kwargs={"enable_thinking": True}).text.endswith("</mm:think>")
        for fields in (
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"chat_template_kwargs": {"thinking_mode": "disabled"}},
            {"reasoning_effort": "none"},
        ):
            assert chat.ask(**fields).text.endswith("</mm:think>")
        mode = {"thinking_mode": "enabled"}
        forced = chat.ask(tools=[TOOL], tool_choice="required", chat_template_kwargs=mode)
        assert not forced.text.endswith("</mm:think>")
