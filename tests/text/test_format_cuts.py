"""Every format's parser on heaps of its own marks: no cut changes what is read, and nothing is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from splitting import cut, joined, split
from test_format_rules import CALL, CHANNELS, FAMILIES

from firelane.text.chat.reasoning import MARKS, with_reasoning
from firelane.text.tools.families import named_family
from firelane.text.tools.tool import Tool

SCHEMA = {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}
KNOWN = (Tool("plain", None, SCHEMA), Tool("f"))
PIECE = re.compile(r"<[^<>]*>|\[[A-Z_]+\]|\w+|\s+|.", re.DOTALL)
COMMON = [
    " ",
    "\n",
    ",",
    '"',
    "'",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ":",
    "=",
    "<",
    "</",
    "é",
    "🔥",
    "word",
    "1",
    "\\",
]


def fragments(name: str) -> list[str]:
    """Pieces of a call, whole marks among them, and pieces of any text."""
    text = CALL[name]
    halves = [text[: len(text) // 2], text[len(text) // 2 :], text]
    return [*dict.fromkeys(PIECE.findall(text)), *named_family(name).delimiters, *halves, *COMMON]


def soup(name: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(fragments(name)), max_size=20).map("".join)


CUTS = st.lists(st.integers(0, 600), max_size=12)


@pytest.mark.parametrize("name", FAMILIES)
def test_no_cut_changes_what_is_read(name):
    parse = named_family(name).parse
    marks = MARKS["gemma4" if name == "gemma4" else "think"]
    thinking = parse if name in CHANNELS else with_reasoning(parse, marks, named_family(name).openings)

    @settings(max_examples=60, deadline=None)
    @given(soup(name), CUTS, st.booleans())
    def check(text: str, places: list[int], thinks: bool) -> None:
        read = thinking if thinks and named_family(name).opening else parse
        whole = joined(split(read, [text], known=KNOWN, in_reasoning=thinks))
        assert joined(split(read, list(text), known=KNOWN, in_reasoning=thinks)) == whole
        assert joined(split(read, cut(text, places), known=KNOWN, in_reasoning=thinks)) == whole

    check()


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in CHANNELS])
def test_words_are_never_lost(name):
    """Whatever stands around them: they are content or a part of a call. (Heads of messages may
    hold words that mean nothing.)
    """
    parse = named_family(name).parse

    @settings(max_examples=60, deadline=None)
    @given(soup(name), soup(name), st.booleans())
    def check(before: str, after: str, by_letter: bool) -> None:
        text = f"{before} zebra {after}"
        content, reasoning, calls = joined(split(parse, list(text) if by_letter else [text], known=KNOWN))
        found = content + reasoning + "".join(name + arguments for name, arguments in calls)
        assert "zebra" in found or _within_tag(text)

    check()


def _within_tag(text: str) -> bool:
    """Between the marks of a head, where there is no room for words."""
    return re.search(r"[<\[{(|][^>\]})]*zebra", text) is not None
