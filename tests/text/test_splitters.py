"""Formats of calls and of reasoning: what each text is, however it is cut, and that nothing is lost."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from splitting import cut, joined, split

from firelane.text.chat.reasoning import with_reasoning
from firelane.text.tools.formats.hermes import Hermes
from firelane.text.tools.formats.llama3 import Llama3Json
from firelane.text.tools.formats.mistral import Mistral
from firelane.text.tools.stream_buffer import all_content

HERMES, LLAMA, MISTRAL = Hermes().parse, Llama3Json().parse, Mistral().parse
CALL = '{"name": "f", "arguments": {"a": [1, "}"]}}'
ARGS = '{"a": [1, "}"]}'

NOISE = '"x": 1, ' * 1000
DEEP = "[" * 400 + "]" * 400

CASES = [
    (HERMES, "plain", "plain", []),
    (HERMES, "  \n", "  \n", []),
    (HERMES, f"<tool_call>\n{CALL}\n</tool_call>", "", [("f", ARGS)]),
    (HERMES, f"\n\n<tool_call>{CALL}</tool_call>\n", "", [("f", ARGS)]),
    (HERMES, f"Let me see.\n<tool_call>\n{CALL}\n</tool_call>", "Let me see.\n", [("f", ARGS)]),
    (HERMES, f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "", [("f", ARGS)] * 2),
    (HERMES, f"<tool_call>{CALL}</tool_call> and so", " and so", [("f", ARGS)]),
    (HERMES, f"<tool_call>{CALL}", "", [("f", ARGS)]),
    (HERMES, '<tool_call>{"arguments": {"x": 1}, "name": "g"}</tool_call>', "", [("g", '{"x": 1}')]),
    (HERMES, '<tool_call>{"name": "g"}</tool_call>', "", [("g", "{}")]),
    (HERMES, '<tool_call>{"name": "g", "arguments": null}</tool_call>', "", [("g", "{}")]),
    (HERMES, '<tool_call>{"name": "g", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [("g", '{"x": 1}')]),
    (HERMES, '<tool_call>{"name": "g", "arguments": {}, "id": "7"}</tool_call>', "", [("g", "{}")]),
    (HERMES, '<tool_call>{"name": "g", "arguments": {"x": "é🔥', "", [("g", '{"x": "é🔥')]),
    (HERMES, "<tool_call>{nonsense}</tool_call>", "<tool_call>{nonsense}</tool_call>", []),
    (HERMES, '<tool_call>{"name": "g", "id": "7", "type": "function"}</tool_call>', "", [("g", "{}")]),
    *(
        (HERMES, text, text, [])
        for text in (
            '<tool_call>{"name": "g", "city": "x"}</tool_call>',
            '<tool_call>{"days": [1, 2], "id": "7", "name": "g"}</tool_call>',
        )
    ),
    (HERMES, '<tool_call>{"name": 7, "arguments": {}}', '<tool_call>{"name": 7, "arguments": {}}', []),
    (HERMES, '<tool_call>{"name": "g", ', '<tool_call>{"name": "g", ', []),
    (HERMES, f'<tool_call>{{"name": "{"n" * 300}"', f'<tool_call>{{"name": "{"n" * 300}"', []),
    (HERMES, "a <tool_cal", "a <tool_cal", []),
    (HERMES, '<tool_call>{"name": "\\ud800", ', '<tool_call>{"name": "\\ud800", ', []),
    (HERMES, f'<tool_call>{{"arguments": "{"a" * 5000}"', f'<tool_call>{{"arguments": "{"a" * 5000}"', []),
    (HERMES, f'<tool_call>{{"x": {"9" * 300}, ', f'<tool_call>{{"x": {"9" * 300}, ', []),
    (
        HERMES,
        f'<tool_call>{{{NOISE}"name": "g"}}</tool_call>',
        f'<tool_call>{{{NOISE}"name": "g"}}</tool_call>',
        [],
    ),
    (
        HERMES,
        f'<tool_call>{{"arguments": {{"x": {DEEP}}}, "name": "g"}}</tool_call>',
        "",
        [("g", f'{{"x": {DEEP}}}')],
    ),
    (LLAMA, "plain", "plain", []),
    (LLAMA, '{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    (LLAMA, '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    (
        LLAMA,
        '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"b": 2}}',
        "",
        [("f", "{}"), ("g", '{"b": 2}')],
    ),
    (LLAMA, '{"name": "Bob", "parameters": {}}', '{"name": "Bob", "parameters": {}}', []),
    (LLAMA, '{"answer": 4}', '{"answer": 4}', []),
    (LLAMA, "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    (LLAMA, '{"name": "f", "parameters": {}} done', " done", [("f", "{}")]),
    (MISTRAL, "plain [TOOL", "plain [TOOL", []),
    (MISTRAL, f"[TOOL_CALLS] [{CALL}]", "", [("f", ARGS)]),
    (MISTRAL, f"[TOOL_CALLS][{CALL}, {CALL}]", "", [("f", ARGS)] * 2),
    (MISTRAL, f"[TOOL_CALLS]{CALL}", "", [("f", ARGS)]),
    (MISTRAL, '[TOOL_CALLS]f[ARGS]{"a": 1}', "", [("f", '{"a": 1}')]),
    (MISTRAL, '[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g[ARGS]{}', "", [("f", '{"a": 1}'), ("g", "{}")]),
    (MISTRAL, '[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"a": 1}', "", [("f", '{"a": 1}')]),
    (MISTRAL, "Hm. [TOOL_CALLS]what is this?", "Hm. [TOOL_CALLS]what is this?", []),
    (MISTRAL, "[TOOL_CALLS] [1, 2]", "[TOOL_CALLS] [1, 2]", []),
]


@pytest.mark.parametrize(("parse", "text", "content", "calls"), CASES)
def test_cases_whole_and_by_the_letter(parse, text, content, calls):
    for pieces in ([text], list(text)):
        assert joined(split(parse, pieces)) == (content, "", calls)


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<think>"),
    *("</think>", CALL, '{"name": "f", ', '"arguments": ', '"parameters": ', '{"a": "\\""}', "}", "]", "["),
    *(" ", "\n", ";", ",", "f", "word", '"', "\\", "<", "{", "🔥", "é", "1"),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)
CUTS = st.lists(st.integers(0, 400), max_size=12)
PARSERS = st.sampled_from(
    [HERMES, LLAMA, MISTRAL, with_reasoning(all_content), with_reasoning(HERMES), with_reasoning(MISTRAL)]
)


@settings(max_examples=400, deadline=None)
@given(PARSERS, TEXTS, CUTS, st.booleans())
def test_any_cut_gives_the_same(parse, text, places, in_reasoning):
    whole = joined(split(parse, [text], in_reasoning=in_reasoning))
    assert joined(split(parse, cut(text, places), in_reasoning=in_reasoning)) == whole


@settings(max_examples=300, deadline=None)
@given(PARSERS, TEXTS, CUTS)
def test_nothing_is_made_up_and_order_is_kept(parse, text, places):
    """The deltas' text is the given text with parts left out."""
    rest = iter(text)
    for delta in split(parse, cut(text, places)):
        for c in getattr(delta, "text", None) or "":
            assert c in rest or delta.text == "{}"


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.sampled_from('ab {}[]",:<>tool_call/|\n'), max_size=60), CUTS)
def test_text_without_a_mark_is_content(text, places):
    for parse, mark in ((HERMES, "<tool_call>"), (MISTRAL, "[TOOL_CALLS]")):
        if mark not in text:
            assert joined(split(parse, cut(text, places))) == (text, "", [])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.text(max_size=8), JSON, max_size=4), CUTS, st.sampled_from([None, 1]), st.booleans()
)
def test_any_arguments_come_through(value, places, indent, ascii_only):
    args = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    for parse, text in (
        (HERMES, f'<tool_call>\n{{"name": "f", "arguments": {args}}}\n</tool_call>'),
        (LLAMA, f'{{"name": "f", "parameters": {args}}}'),
        (MISTRAL, f'[TOOL_CALLS] [{{"name": "f", "arguments": {args}, "id": "abcdefghi"}}]'),
        (MISTRAL, f"[TOOL_CALLS]f[ARGS]{args}"),
    ):
        assert joined(split(parse, cut(text, places))) == ("", "", [("f", args)])


@pytest.mark.parametrize(
    "piece", ['<tool_call>{"arguments": {', '<tool_call>{"x": 1, ', "<tool_call>", "[TOOL_CALLS]a"]
)
def test_hostile_repetition_is_cheap(piece):
    """Text that looks like calls again and again is not searched again and again."""
    text = piece * (60_000 // len(piece))
    for parse in (HERMES, MISTRAL):
        begin_s = time.process_time()
        assert joined(split(parse, cut(text, list(range(0, len(text), 5)))))[0] == text
        assert time.process_time() - begin_s < 10


def test_arguments_stream():
    """Once a call has begun, each piece goes out at once."""
    deltas = [split(HERMES, ['<tool_call>{"name": "f", "arguments": {"a": "'])]
    assert joined(deltas[0])[2] == [("f", '{"a": "')]


@pytest.mark.parametrize(
    ("text", "in_reasoning", "expected"),
    [
        ("<think>\nhm\n</think>\n\nyes", False, ("yes", "hm\n")),
        ("hm</think>yes", True, ("yes", "hm")),
        ("yes", False, ("yes", "")),
        ("  yes", False, ("  yes", "")),
        ("<thin", False, ("<thin", "")),
        ("<think>hm", False, ("", "hm")),
        ("", True, ("", "")),
        ("yes <think>no</think>", False, ("yes <think>no</think>", "")),
        ("<think></think>\n\nyes", False, ("yes", "")),
    ],
)
def test_reasoning(text, in_reasoning, expected):
    for pieces in ([text], list(text)):
        assert joined(split(with_reasoning(all_content), pieces, in_reasoning=in_reasoning))[:2] == expected


def test_reasoning_before_a_call():
    text = f"<think>I need f</think>\n<tool_call>\n{CALL}\n</tool_call>"
    assert joined(split(with_reasoning(HERMES), list(text))) == ("", "I need f", [("f", ARGS)])


def test_only_so_many_calls():
    text = f"<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>more"
    assert joined(split(HERMES, list(text), limit=1)) == ("", "", [("f", ARGS)])
    assert joined(split(HERMES, [text], limit=1)) == ("", "", [("f", ARGS)])
