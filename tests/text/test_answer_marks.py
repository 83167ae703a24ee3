"""Whole requests to models that put marks around the answer, too."""

from __future__ import annotations

import pytest
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
        content = chat.ask(response_format=FORM)
        assert content.text.endswith("<|START_THINKING|><|END_THINKING|><|START_TEXT|>")
        assert content.splitter is None
        forced = chat.ask(tools=[TOOL], tool_choice="required")
        assert forced.text.endswith("<|START_THINKING|><|END_THINKING|>")
        assert chat.read(forced, CALL) == ("", "", [("f", '{"a": 1}')])
        both = chat.ask(tools=[TOOL], response_format=FORM)
        assert f"body: <[{chat.id_of('<|START_TEXT|>')}]>" in both.grammar.text
        assert chat.read(both, '<|START_TEXT|>{"a": 1}') == ('{"a": 1}', "", [])


def test_a_message_goes_on_within_its_marks():
    with chatting(COHERE, *SPECIALS) as chat:
        messages = [USER, {"role": "assistant", "content": "It is"}]
        asked = chat.ask(messages=messages, continue_final_message=True, add_generation_prompt=False)
        assert asked.text.endswith("<|START_TEXT|>It is")
        assert chat.read(asked, " so.<|END_TEXT|>") == (" so.", "", [])
