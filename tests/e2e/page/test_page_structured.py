"""Structured output from the page: checked before it is sent, kept to by the answer."""

from __future__ import annotations

import json
import re

import pytest
from page_support import Open, Visit

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "size": {"enum": [1, 2, 3]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


def structured(tab: Visit, kind: str, text: str | None = None) -> Visit:
    tab.page.select_option("#structure", kind)
    if text is not None:
        tab.page.fill("#structure-text", text)
    return tab


BAD = [
    ("json_schema", '{"type": "object",', "Not valid JSON"),
    ("json_schema", "[1, 2]", "is an object"),
    ("regex", " ", "Give an expression"),
    ("choice", "\n \n", "at least one choice"),
    ("grammar", "", "Give a grammar"),
]


def test_what_cannot_be_right_is_not_sent(visit: Open) -> None:
    tab = visit().ready().set(message="Hello")
    for kind, text, says in BAD:
        structured(tab, kind, text)
        tab.page.press("#message", "Enter")
        assert tab.page.evaluate("document.activeElement.id") == "structure-text"
        assert says in tab.page.text_content("#structure-text-wrong")
    assert tab.sent == []


def test_schema(visit: Open) -> None:
    tab = structured(visit().ready(), "json_schema", json.dumps(SCHEMA)).send("Describe a list.")
    answer = json.loads(tab.answer)
    assert len(answer["name"]) <= 8
    assert answer["size"] in (1, 2, 3)
    assert "valid JSON" in tab.texts(".figures li")
    form = tab.sent[0]["response_format"]
    assert (form["type"], form["json_schema"]["schema"]) == ("json_schema", SCHEMA)


def test_cut_off_json_is_named(visit: Open) -> None:
    tab = visit().ready().set(max_tokens="1")
    structured(tab, "json_schema", json.dumps(SCHEMA)).send("Describe a list.")
    assert "not complete JSON" in tab.texts(".figures li")


@pytest.mark.parametrize("mode", ["chat", "completion"])
def test_choice_expression_and_grammar(visit: Open, mode: str) -> None:
    tab = structured(visit().ready().choose(mode), "choice").send("A list is")
    assert tab.answer in ("positive", "neutral", "negative")
    assert tab.sent[0]["structured_outputs"] == {"choice": ["positive", "neutral", "negative"]}
    structured(tab, "regex", "(yes|no), [a-z]{3}").send("Is a list a list?")
    assert re.fullmatch("(yes|no), [a-z]{3}", tab.answer)
    structured(tab, "grammar", 'root ::= "GET /" ("a" | "b")').send("Ask.")
    assert tab.answer in ("GET /a", "GET /b")


def test_what_the_server_refuses_is_shown(visit: Open) -> None:
    tab = structured(visit(expect=(400,)).ready(), "json_schema", '{"type": "no such type"}').send("Hello")
    alert = tab.page.get_by_role("alert").text_content()
    assert "no such type" in alert
    assert "HTTP 400" in alert


def test_each_kind_keeps_its_text(visit: Open) -> None:
    tab = structured(visit().ready(), "regex", "a+")
    structured(tab, "choice", "b")
    structured(tab, "regex")
    assert tab.page.input_value("#structure-text") == "a+"
    assert tab.page.text_content("#structure-label") == "Expression"
    structured(tab, "")
    assert tab.page.is_hidden("#structure-text")
