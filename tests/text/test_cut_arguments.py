"""Arguments that are no JSON object, as templates get them that take nothing else."""

from __future__ import annotations

import json

import pytest

from firelane.text.tools.cut_arguments import KEY, MOST_CHARS, as_object

WHOLE = {"city": 'Zü\n "q" \\ 🔥', "n": [1, {"a": True}], "m": None, "f": -1500.5}
TEXT = json.dumps(WHOLE).replace("\\ud83d\\udd25", "🔥")


@pytest.mark.parametrize("end", range(1, len(TEXT)))
def test_a_cut_object_keeps_what_was_whole(end):
    made = as_object(TEXT[:end])
    assert list(made) == list(WHOLE)[: len(made)]
    complete = [key for key in list(WHOLE)[:-1] if f'"{key}": ' + json.dumps(WHOLE[key]) + "," in TEXT[:end]]
    assert all(made[key] == WHOLE[key] for key in complete)
    text = made.get("city", "")
    assert WHOLE["city"].startswith(text)


@pytest.mark.parametrize(
    "text", ["", "5", "[1]", "read it", "{} x", '{"a": 1}}', '{"a" 1}', '{"a": 1, b: 2', "{" * 9999]
)
def test_the_whole_text_stays_where_it_begins_no_object(text):
    assert as_object(text) == {KEY: text}


def test_a_long_text_is_not_looked_into():
    text = '{"a": "' + "x" * MOST_CHARS
    assert as_object(text) == {KEY: text}


def test_an_object_is_as_it_was():
    assert as_object(WHOLE) is WHOLE


def test_half_a_character_goes():
    assert as_object('{"a": "x\\ud83d') == {"a": "x"}
