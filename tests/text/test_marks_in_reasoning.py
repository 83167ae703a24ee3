"""Marks within reasoning and beside it: calls that are made in it, calls that it quotes, marks too many."""

from __future__ import annotations

import time

import pytest
from formats import format_of
from splitting import Joined, joined, split

from firelane.text.chat.reasoning import MARKS, with_reasoning
from firelane.text.tools.families import named_family
from firelane.text.tools.stream_buffer import all_content
from firelane.text.tools.tool import Tool

KNOWN = (Tool("look", None, {"properties": {"at": {"type": "string"}}}), Tool("wait"))
WAY = {
    "hermes": ("think", '<tool_call>\n{"name": "look", "arguments": {"at": "x"}}\n</tool_call>'),
    "mistral": ("mistral", '[TOOL_CALLS]look[ARGS]{"at": "x"}'),
    "qwen3_coder": (
        "think",
        "<tool_call>\n<function=look>\n<parameter=at>\nx\n</parameter>\n</function>\n</tool_call>",
    ),
    "glm47": ("think", "<tool_call>look<arg_key>at</arg_key><arg_value>x</arg_value></tool_call>"),
    "minimax_m2": (
        "think",
        '<minimax:tool_call>\n<invoke name="look">\n<parameter name="at">x</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
    ),
    "kimi_k2": (
        "think",
        '<|tool_call_begin|>functions.look:4<|tool_call_argument_begin|>{"at": "x"}<|tool_call_end|>',
    ),
    "deepseek_v31": (
        "think",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>"
        '{"at": "x"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ),
    "seed_oss": (
        "seed_oss",
        "<seed:tool_call>\n<function=look>\n<parameter=at>x</parameter>\n</function>\n</seed:tool_call>",
    ),
    "gemma4": ("gemma4", '<|tool_call>call:look{at:<|"|>x<|"|>}<tool_call|>'),
}
CALL = ("look", '{"at": "x"}')


def read(name: str, text: str, *, in_reasoning: bool = True, limit: int = 0) -> Joined:
    """However the text is cut, it is the same."""
    family, marks = named_family(name), MARKS[WAY[name][0]]
    assert family is not None
    assert marks is not None
    parse = with_reasoning(family.parse, marks, family.openings)

    def one(pieces: list[str]) -> Joined:
        return joined(split(parse, pieces, known=KNOWN, in_reasoning=in_reasoning, limit=limit))

    whole = one([text])
    assert one(list(text)) == whole
    for place in range(len(text)):
        assert one([text[:place], text[place:]]) == whole
    return whole


@pytest.mark.parametrize("name", WAY)
class TestOfEveryFormat:
    def close(self, name: str) -> str:
        marks = MARKS[WAY[name][0]]
        assert marks is not None
        return marks.close

    def test_a_call_that_is_made_without_closing_the_reasoning(self, name):
        call = WAY[name][1]
        assert read(name, f"I look.\n{call}") == ("", "I look.\n", [CALL])
        assert read(name, f"I look: {call}\n{call}\n") == ("", "I look: ", [CALL, CALL])
        assert read(name, call, limit=1) == ("", "", [CALL])

    def test_a_call_that_is_quoted(self, name):
        call, close = WAY[name][1], self.close(name)
        for quoted in (f"To call {call} or not?", f"So:\n{call}\nHm, no.", f"{call}{call} twice?"):
            assert read(name, f"{quoted}{close}Done.") == ("Done.", quoted, [])
            assert read(name, f"{quoted}{close}{call}") == ("", quoted, [CALL])
            assert read(name, f"{quoted}{close}") == ("", quoted, [])

    def test_quoted_where_the_text_ends_in_reasoning(self, name):
        call = WAY[name][1]
        assert read(name, f"To call {call} or") == ("", f"To call {call} or", [])

    def test_the_answer_behind_a_call_of_its_own_line(self, name):
        assert read(name, f"Hm.\n{WAY[name][1]}\nI looked.") == ("\nI looked.", "Hm.\n", [CALL])

    def test_a_mark_alone_and_a_call_of_something_unknown(self, name):
        call, close = WAY[name][1], self.close(name)
        other = call.replace("look", "leap")
        mark = next(mark for mark in named_family(name).openings if call.startswith(mark))
        for thought in (f"The mark {mark} begins", f"As in\n{other}", f"{mark}\n{mark}"):
            assert read(name, f"{thought}{close}ok") == ("ok", thought, [])

    def test_a_call_with_the_closing_mark_behind_it_and_nothing_else(self, name):
        call, close = WAY[name][1], self.close(name)
        assert read(name, f"I look.\n{call}\n{close}\n") == ("", "I look.\n", [CALL])

    def test_a_closing_mark_of_nothing(self, name):
        assert read(name, f"{self.close(name)}\n\nHi.", in_reasoning=False) == ("Hi.", "", [])

    def test_a_call_that_is_cut(self, name):
        text = f"Hm.\n{WAY[name][1]}"
        content, _, calls = read(name, text[: text.index("x", text.index("at")) + 1])
        assert not content
        assert [called for called, _ in calls] == ["look"]


@pytest.mark.parametrize(
    "piece", ["<tool_call>", "<tool_call>\n", '<tool_call>{"name": "look"}\n', "</think"]
)
def test_hostile_repetition_is_cheap(piece):
    family = named_family("hermes")
    assert family is not None
    parse = with_reasoning(family.parse, MARKS["think"], family.openings)
    text = piece * (20_000 // len(piece))
    begin_s = time.process_time()
    for pieces in ([text], [text[i : i + 16] for i in range(0, len(text), 16)]):
        assert sum(map(len, joined(split(parse, pieces, known=KNOWN, in_reasoning=True))[:2])) <= len(text)
    assert time.process_time() - begin_s < 10


def test_arguments_that_hold_the_closing_mark():
    call = WAY["hermes"][1].replace('"x"', '"</think>"')
    assert read("hermes", f"Hm.\n{call}") == ("", "Hm.\n", [("look", '{"at": "</think>"}')])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("<|channel>thought<channel|>Hi.", ("Hi.", "")),
        ("<|channel>thought\nA<channel|>Hi.<channel|>", ("Hi.", "A")),
        ("Hi.<|channel>thought\nA<channel|> Ho.", ("Hi. Ho.", "A")),
        ("<|channel><|channel>thought\n<channel|><|channel>thought\nB<channel|>Hi.", ("Hi.", "B")),
        ("Hi.<|channel>thought\ncut", ("Hi.", "cut")),
        ("Hi.<|channel>", ("Hi.", "")),
        ("a <b> <|chan c", ("a <b> <|chan c", "")),
    ],
)
def test_channels_of_gemma_are_never_content(text, wanted):
    assert read("gemma4", text, in_reasoning=False) == (*wanted, [])
    parse = with_reasoning(all_content, MARKS["gemma4"])
    assert joined(split(parse, list(text))) == (*wanted, [])


def test_the_limit_of_calls_holds_beside_channels():
    text = f"<|channel>thought\nA<channel|>{WAY['gemma4'][1]}{WAY['gemma4'][1]} more"
    assert read("gemma4", text, in_reasoning=False, limit=1) == ("", "A", [CALL])


def test_reasoning_that_is_never_opened():
    """DeepSeek R1's older templates leave it to the model."""
    template = (
        "{% for m in messages %}{{ '<｜Assistant｜>' + m.content.split('</think>')[-1] }}{% endfor %}"
        "{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
    )
    marks = format_of(template).marks
    assert marks is not None
    assert marks == MARKS["deepseek_r1"]
    assert marks.begun("<｜Assistant｜>")
    assert marks.ended("<｜Assistant｜>") == "<｜Assistant｜>"
    parse = with_reasoning(all_content, marks)
    for text in ("Hm.</think>\nHi.", "<think>\nHm.</think>\nHi.", "\n<think>Hm.</think>Hi."):
        assert joined(split(parse, list(text), in_reasoning=True)) == ("Hi.", "Hm.", [])
    other = format_of(template.replace("<｜Assistant｜>", "<|assistant|>")).marks
    assert other is not None
    assert not other.implied


@pytest.mark.parametrize("first", ["commentary to=assistant", "commentary", "final"])
def test_the_last_channel_of_a_harmony_message_counts(first):
    family = named_family("harmony")
    assert family is not None
    text = (
        f"<|channel|>{first}<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
        f"<|channel|>{first}<|channel|>final<|message|>Hi."
    )
    for pieces in ([text], list(text)):
        assert joined(split(family.parse, pieces, known=KNOWN)) == ("Hi.", "Hm.", [])
