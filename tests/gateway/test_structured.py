"""The engine is told what a request asks its answer to match."""

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


TAG = {
    "type": "tag",
    "begin": "<f=a>",
    "content": {"type": "json_schema", "json_schema": SCHEMA},
    "end": "</f>",
}
OLDER = {
    "type": "structural_tag",
    "structures": [{"begin": "<f=a>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f="],
}


def newer(**form):
    return {"type": "structural_tag", "format": form}


def triggered(**changes):
    return newer(**{"type": "triggered_tags", "triggers": ["<f="], "tags": [TAG], **changes})


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": OLDER},
        {"response_format": triggered(), "stream": True},
        {"structured_outputs": {"structural_tag": json.dumps(OLDER)}},
        {"structured_outputs": {"structural_tag": json.dumps({**triggered(), "type": "structural_tag"})}},
    ],
)
def test_structural_tags(service, path, fields):
    sent = grammar(service, path, **fields)
    assert sent.kind == "structural_tag"
    tree = json.loads(sent.text)
    assert (tree["type"], tree["triggers"]) == ("triggered_tags", ["<f="])
    schema = tree["tags"][0]["content"]["json_schema"]
    assert schema["properties"] == SCHEMA["properties"]
    assert schema["additionalProperties"] is False


def nested_tags(levels):
    return {"type": "or", "elements": [nested_tags(levels - 1)]} if levels else {"type": "any_text"}


TEXT = {"type": "any_text"}
REFUSED_TAGS = {
    "nothing": ({"type": "structural_tag"}, ".structures"),
    "no structures": ({**OLDER, "structures": []}, ".structures"),
    "no triggers": ({**OLDER, "triggers": []}, ".triggers"),
    "both forms": ({**OLDER, "format": TEXT}, ".format"),
    "empty begin": (
        {**OLDER, "structures": [{**OLDER["structures"][0], "begin": ""}]},
        ".structures[0].begin",
    ),
    "no end": ({**OLDER, "structures": [{"begin": "<f=", "schema": {}}]}, ".structures[0].end"),
    "other begin": ({**OLDER, "triggers": ["<g="]}, ".structures[0].begin"),
    "idle trigger": ({**OLDER, "triggers": ["<f=", "<g="]}, ".triggers[1]"),
    "trigger in a trigger": ({**OLDER, "triggers": ["<f=", "<f=a"]}, None),
    "trigger within a trigger": (
        triggered(triggers=["<f=", "f="], tags=[TAG, {**TAG, "begin": "f=1"}]),
        ".format.triggers[0]",
    ),
    "empty trigger": (triggered(triggers=[""]), ".format.triggers[0]"),
    "empty begin of a tag": (triggered(tags=[{**TAG, "begin": ""}]), ".format.tags[0].begin"),
    "no end of a tag": (triggered(tags=[{**TAG, "content": TEXT, "end": ""}]), ".format.tags[0].end"),
    "end missing": (triggered(tags=[{"begin": "<f=", "content": TEXT}]), ".format.tags[0].end"),
    "unknown type": (newer(type="token", token="x"), ".format.type"),
    "unknown field": (newer(type="any_text", exclude=["x"]), ".format.exclude"),
    "style": (newer(type="json_schema", json_schema={}, style="qwen_xml"), ".format.style"),
    "schema": (newer(type="json_schema", json_schema=5), ".format.json_schema"),
    "deep schema": (newer(type="json_schema", json_schema=deep(40)), ".format.json_schema"),
    "endless": (newer(type="sequence", elements=[TEXT, TAG]), ".format.elements[0]"),
    "endless star": (newer(type="star", content=TEXT), ".format.content"),
    "trigger in an end": (
        newer(type="tag", begin="<", content=triggered()["format"], end="<f=>"),
        ".format.end",
    ),
    "trigger in an end of a tag within": (
        newer(
            type="tag",
            begin="<",
            content={"type": "tag", "begin": "(", "content": triggered()["format"], "end": ""},
            end="<f=>",
        ),
        ".format.end",
    ),
    "no elements": (newer(type="or", elements=[]), ".format.elements"),
    "deep": ({"type": "structural_tag", "format": nested_tags(17)}, ".format" + ".elements[0]" * 16),
    "many": (newer(type="or", elements=[{"type": "or", "elements": [TEXT] * 40}] * 40), ...),
}


@pytest.mark.parametrize("name", REFUSED_TAGS)
def test_structural_tags_refused(service, name):
    form, place = REFUSED_TAGS[name]
    answer = post(service, response_format=form)
    if place is None:  # one trigger begins the other
        assert answer.status_code == 200
        return
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert place is ... or error["param"] == f"response_format{place}", error
    answer = post(service, "/v1/completions", structured_outputs={"structural_tag": json.dumps(form)})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("structured_outputs.structural_tag")
    assert place is ... or answer.json()["error"]["param"].endswith(place)


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "{}", '{"type": "text"}', '{"format": 5}', '{"format":' * 5000]
)
def test_structural_tags_that_are_no_json_of_one(service, text):
    answer = post(service, structured_outputs={"structural_tag": text})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("structured_outputs.structural_tag")


def test_very_deep_structural_tags(service):
    tag = '{"type":"or","elements":[' * 1500 + '{"type":"any_text"}' + "]}" * 1500
    form = f'"response_format": {{"type": "structural_tag", "format": {tag}}}'
    for more in ("", '"no_such_field": 1, '):
        body = f'{{"messages": {json.dumps(USER)}, {more}{form}}}'
        answer = service.http.post("/v1/chat/completions", content=body)
        assert answer.status_code == 400


def test_unknown_fields_beside_structural_tags_are_found_at_once(service):
    form = {"type": "any_text"}
    for _ in range(14):
        form = {"type": "optional", "content": form}
    answer = post(service, response_format=newer(**form), no_such_field=1)
    assert answer.status_code == 200
    assert answer.headers["x-ignored-fields"] == "no_such_field"


@pytest.mark.parametrize("kind", ["text", "json_object"])
def test_fields_of_structural_tags_beside_another_format(service, kind):
    answer = post(service, response_format={"type": kind, "triggers": ["<f="]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "response_format.triggers"


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
