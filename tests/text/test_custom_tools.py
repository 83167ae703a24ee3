"""Custom tools: Lark grammars as patterns, inputs out of arguments however they are cut, and every format of
calls, which holds inputs to their grammar."""

from __future__ import annotations

import contextlib
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_think_then_obey import THINKING, Model
from test_think_then_obey import read as read_answer

from firelane.errors import RequestError
from firelane.text.deltas import CallArguments, CallStart, Delta
from firelane.text.tools.custom.custom_tool import custom_tool
from firelane.text.tools.custom.inputs import CustomInputs
from firelane.text.tools.custom.lark_pattern import pattern_of_lark

PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF
%import common.LF
"""
SUM = """
?start: sum  // what is computed
sum.2: term (SP ("+" | "-") SP term)~0..3
     | "none"i
term: INT [SP "*" SP INT]
SP: " "
%import common.INT
"""
GRAMMARS = {
    "patch": (
        PATCH,
        [
            "*** Begin Patch\n*** Add File: a/b.py\n+x = 1\n+\n*** End Patch",
            "*** Begin Patch\n*** Delete File: x\n*** End Patch\n",
        ],
        ["", "*** Begin Patch\n*** End Patch", "*** Begin Patch\n*** Add File: a\nx\n*** End Patch"],
    ),
    "sum": (SUM, ["1", "1 + 23 * 4 - 5", "NONE"], ["1+2", "1 + 1 + 1 + 1 + 1", "1 *", " 1"]),
    "marks": (
        r'start: "a\"\\\n" "a".."c"{2,3} /x\/[0-9]{2}/i',
        ['a"\\\nabX/07', 'a"\\\nabcx/07'],
        ['a"\\\nax/07'],
    ),
}
REFUSED = {
    "recursive": 'start: "(" start ")" | "x"',
    "by others": "start: a\na: b\nb: a?",
    "no start": 'a: "x"',
    "no rule": "start: b",
    "twice": 'start: "a"\nstart: "b"',
    "ignored": 'start: "a"\n%ignore " "',
    "other import": "start: A\n%import python.A",
    "unknown import": "start: A\n%import common.A",
    "no name": ': "a"',
    "open group": 'start: ("a"',
    "empty text": 'start: ""',
    "times": 'start: "a"~5000',
    "flags": "start: /a/x",
    "no Lark": "start: <tool>",
    "deep": "start: " + "(" * 200 + '"a"' + ")" * 200,
    "chain": "start: r0\n"
    + "\n".join(f"r{i}: {'(' * 30}r{i + 1}{')' * 30}" for i in range(60))
    + '\nr60: "a"',
    "long": "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(40)) + '\nr40: "a"',
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_grammar_as_a_pattern(name: str) -> None:
    text, good, bad = GRAMMARS[name]
    pattern = re.compile(pattern_of_lark(text, "t"))
    assert all(pattern.fullmatch(one) for one in good)
    assert not any(pattern.fullmatch(one) for one in bad)


@pytest.mark.parametrize("name", REFUSED)
def test_grammars_that_no_pattern_says(name: str) -> None:
    with pytest.raises(RequestError, match="the grammar of 't' cannot be held") as raised:
        pattern_of_lark(REFUSED[name], "t")
    assert raised.value.param == "tools"


@pytest.mark.parametrize("regex", ["^a|b$", r"a\$", r"^a\\$", "a|b"])
def test_anchors_of_a_regex(regex: str) -> None:
    schema = custom_tool("t", None, "regex", regex).schema()
    pattern = schema["properties"]["input"]["pattern"]
    for text in ("a", "b", "a$", "a\\", "ab", ""):
        assert bool(re.search(pattern, text)) == bool(re.fullmatch(regex, text))


def read(pieces: list[str], *, name: str = "t") -> list[Delta]:
    inputs = CustomInputs({"t": custom_tool("t", None), "f": custom_tool("f", None)})
    deltas = [CallStart(0, "i", name), *(CallArguments(0, piece) for piece in pieces)]
    return [one for delta in deltas for one in inputs.read([delta], ended=False)] + inputs.read(
        [], ended=True
    )


def text_of(deltas: list[Delta]) -> str:
    assert all(isinstance(one, CallStart | CallArguments) and one.custom for one in deltas)
    return "".join(one.text for one in deltas if isinstance(one, CallArguments))


@given(st.text(), st.lists(st.integers(0, 60), max_size=8), st.booleans())
def test_inputs_however_they_are_cut(said: str, cuts: list[int], ascii_only: bool) -> None:
    arguments = json.dumps({"input": said}, ensure_ascii=ascii_only)
    places = [0, *sorted(cuts), len(arguments)]
    pieces = [arguments[a:b] for a, b in pairwise(places)]
    whole = said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert text_of(read(pieces)) == whole


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input":"a\\', "a"),
        ('{"input": "a\\u00', "a"),
        ('{"input": "\\ud83d\\ude00"}', "😀"),
        ('{"input": "\\ud83dx"}', "�x"),
        ('{"input": "\\ud83d\\u0041"}', "�A"),
        ('{"text": "a"}', '{"text": "a"}'),
        ("ls -l", "ls -l"),
        ("", ""),
    ],
)
def test_arguments_that_are_cut_or_of_another_form(arguments: str, text: str) -> None:
    assert text_of(read([arguments])) == text
    assert text_of(read(list(arguments))) == text


PICK = (
    'start: verb " " name ("," name)? LF?\nverb: "go" | "\\"stop\\""\nname: /[a-c]{1,3}/\n%import common.LF\n'
)
PICKED = r'(go|"stop") [a-c]{1,3}(,[a-c]{1,3})?\n?'
DIGITS = "^[0-9]{2,4}$"
LARK = {"type": "grammar", "grammar": {"syntax": "lark", "definition": PICK}}
REGEX = {"type": "grammar", "syntax": "regex", "definition": DIGITS}
TOOLS = [
    {"type": "custom", "custom": {"name": "pick", "format": LARK}},
    {"type": "custom", "custom": {"name": "dial", "format": REGEX}},
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}},
]
PATTERNS = {"pick": PICKED, "dial": DIGITS, "f": r"\{\}"}
ASKS: dict[str, dict[str, Any]] = {
    "pick": {"tool_choice": {"type": "custom", "custom": {"name": "pick"}}},
    "dial": {"tool_choice": {"type": "custom", "custom": {"name": "dial"}}},
    "any": {"tool_choice": "required"},
}


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("name", THINKING)
def test_every_format_holds_inputs_to_their_grammar(tmp_path: Path, name: str, tokens: bool) -> None:
    with contextlib.closing(Model(tmp_path, name, tokens=tokens)) as model:
        found: set[str] = set()
        for ask, fields in ASKS.items():
            chat = model.ask(**fields, tools=TOOLS)
            for seed in range(4):
                pieces = model.pieces(chat, model.draw(chat, seed))
                content, _, calls = said = read_answer(chat, pieces)
                assert read_answer(chat, ["".join(pieces)]) == said
                assert calls
                assert not content.strip()
                assert all(re.fullmatch(PATTERNS[tool], text) for tool, text in calls), calls
                assert ask == "any" or {tool for tool, _ in calls} == {ask}
                found |= {tool for tool, _ in calls}
        assert {"pick", "dial"} <= found


def test_calls_that_the_model_makes_by_itself_hold_to_the_grammar(tmp_path: Path) -> None:
    with contextlib.closing(Model(tmp_path, "hermes", tokens=True)) as model:
        chat = model.ask(tools=TOOLS)
        call = '<tool_call>\n{"name": "dial", "arguments": {"input": "12'
        assert model.goes_on(chat, call)
        assert model.goes_on(chat, call + "34")
        assert not model.goes_on(chat, call + "a")
