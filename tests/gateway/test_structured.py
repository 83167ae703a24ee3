"""What a request asks the answer to match, as the engine is told it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.api.sampling import SamplingFields
from firelane.text.schemas.constraints import grammar_of

USER = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}


def post(service, path="/v1/chat/completions", **fields):
    body = {"messages": USER} if "chat" in path else {"prompt": "hi"}
    return service.http.post(path, json={**body, **fields})


def grammar(service, path="/v1/chat/completions", **fields):
    answer = post(service, path, **fields)
    assert answer.status_code == 200, answer.text
    return service.engine.submitted[-1].grammar


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": FORM},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA), "disable_any_whitespace": True}},
        {"guided_json": SCHEMA},
        {"response_format": FORM, "stream": True, "n": 2},
    ],
)
def test_a_schema(service, path, fields):
    sent = grammar(service, path, **fields)
    assert sent.kind == "json_schema"
    assert json.loads(sent.text) == {**SCHEMA, "additionalProperties": False}


@pytest.mark.parametrize(
    "fields", [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}]
)
def test_any_object(service, fields):
    assert json.loads(grammar(service, **fields).text)["type"] == "object"


def test_the_engine_learns_whose_turn_it_is(service):
    grammar(service, response_format=FORM, n=2)
    one, other = service.engine.submitted[-2:]
    address, connection = one.client
    assert address == "127.0.0.1"
    assert connection.isdecimal()
    assert other.client == one.client
    assert grammar(service) is None
    assert service.engine.submitted[-1].client == ("", "")


@pytest.mark.parametrize("prefix", ["guided_", "structured_outputs"])
def test_other_kinds(service, prefix):
    def of(kind, value):
        fields = {prefix: {kind: value}} if prefix == "structured_outputs" else {prefix + kind: value}
        sent = grammar(service, **fields)
        return sent.kind, sent.text

    assert of("regex", r"\d+") == ("regex", r"\d+")
    assert of("choice", ["yes", 'n"o']) == ("lark", 'start: "yes" | "n\\"o"\n')
    assert of("grammar", 'start: "a"+') == ("lark", 'start: "a"+')
    assert of("grammar", 'root ::= "a" | b\nb ::= "c"')[0] == "gbnf"


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}])
def test_free_text(service, fields):
    assert grammar(service, **fields) is None


def test_an_engine_that_cannot_compile_it(service):
    service.engine.reject = "the regular expression is not valid"
    for stream in (False, True):
        answer = post(service, guided_regex="(", stream=stream)
        assert answer.status_code == 400
        assert "not valid" in answer.json()["error"]["message"]


def deep(levels: int) -> dict:
    return {"type": "object", "properties": {"a": deep(levels - 1)}} if levels else {"type": "object"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": FORM, "guided_regex": "a"}, "response_format"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs.json"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
        ),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[1]"}, "guided_json"),
        ({"guided_json": "[" * 100_000}, "guided_json"),
        ({"guided_json": deep(40)}, "guided_json"),
        ({"guided_json": {"description": "x" * 70_000}}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": "a" * 20_000}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [""]}, "guided_choice[0]"),
        ({"guided_choice": ["a"] * 1025}, "guided_choice"),
        ({"guided_choice": [1]}, "guided_choice[0]"),
        ({"guided_grammar": "x" * 70_000}, "guided_grammar"),
        ({"guided_grammar": 5}, "guided_grammar"),
    ],
)
def test_refused(make_service, fields, param):
    service = make_service()
    for path in ("/v1/chat/completions", "/v1/completions"):
        answer = post(service, path, **fields)
        assert answer.status_code in (400, 413), answer.text
        if answer.status_code == 400:
            assert answer.json()["error"]["param"] == param


@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=6))
def test_choices_match_themselves_and_nothing_else(choices):
    llguidance = pytest.importorskip("llguidance")
    if any(0xD800 <= ord(c) < 0xE000 or c == "\0" for choice in choices for c in choice):
        return
    sent = grammar_of(SamplingFields(guided_choice=choices))
    tokenizer = llguidance.LLTokenizer("byte")
    source = llguidance.LLMatcher.grammar_from_lark(sent.text)
    for choice in [*choices, choices[0] + "x", choices[0][:-1]]:
        matcher = llguidance.LLMatcher(tokenizer, source, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        tokens = tokenizer.tokenize_str(choice)
        matches = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
        assert matches is (choice in choices)


def test_the_rule_sign_within_a_text_makes_no_gbnf():
    assert grammar_of(SamplingFields(guided_grammar='start: "a ::= b"')).kind == "lark"


def test_opening_what_is_closed_and_compact(service):
    asked = {"json": SCHEMA, "disable_additional_properties": False, "whitespace_pattern": r"\s?"}
    sent = json.loads(grammar(service, structured_outputs=asked).text)
    spacing = {"whitespace_flexible": True, "whitespace_pattern": r"\s?"}
    assert sent == {**SCHEMA, "x-guidance": spacing}
