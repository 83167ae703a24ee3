"""A constraint on the answer is honoured or refused on every path that generates text, never ignored."""

from __future__ import annotations

import json

import pytest

from tests.gateway.hostile_fields import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    RESPONSES,
    RUN,
    USER,
)

BODIES = {
    "chat": (CHAT, {"messages": USER}),
    "completions": (COMPLETIONS, {"prompt": "x"}),
    "responses": (RESPONSES, {"input": "x"}),
    "messages": (MESSAGES, {"messages": USER, "max_tokens": 20}),
    "ollama chat": (OLLAMA_CHAT, {"model": "toy", "messages": USER, "stream": False}),
    "ollama generate": (OLLAMA_GENERATE, {"model": "toy", "prompt": "x", "stream": False}),
    "ollama raw": (OLLAMA_GENERATE, {"model": "toy", "prompt": "x", "raw": True, "stream": False}),
    "workers": (RUN, {"prompt": "x"}),
    "workers raw": (RUN, {"prompt": "x", "raw": True}),
}
EVERYWHERE = pytest.mark.parametrize("path", BODIES)
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def sent(service, path, **fields):
    """The request as the engine has it."""
    url, body = BODIES[path]
    answer = service.http.post(url, json={**body, **fields})
    assert answer.status_code == 200, answer.text
    assert "x-ignored-fields" not in answer.headers
    return service.engine.submitted[-1]


@EVERYWHERE
@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "lark"),
        ({"guided_json": SCHEMA}, "json_schema"),
        ({"json_schema": json.dumps(SCHEMA)}, "json_schema"),
        ({"regex": "[xy]+"}, "regex"),
        ({"ebnf": 'root ::= "a"'}, "gbnf"),
        ({"bad_words": ["hell"]}, "lark"),
        ({"allowed_token_ids": [65, 66]}, "lark"),
    ],
)
def test_grammars(service, path, fields, kind):
    assert sent(service, path, **fields).grammar.kind == kind


@EVERYWHERE
def test_two_grammars(service, path):
    url, body = BODIES[path]
    answer = service.http.post(url, json={**body, "regex": "a", "bad_words": ["b"]})
    assert answer.status_code == 400
    assert "ask for different things" in answer.text


@EVERYWHERE
def test_numbers(service, path):
    given = {"min_new_tokens": 3, "logit_bias": {"65": 2.5}, "stop_token_ids": [66], "random_seed": 5}
    sampling = sent(service, path, **given, repeat_penalty=1.5, min_p=0.25).sampling
    assert (sampling.min_tokens, sampling.logit_bias, sampling.seed) == (3, [(65, 2.5)], 5)
    assert 66 in sampling.stop_token_ids
    assert (sampling.repetition_penalty, sampling.min_p) == (1.5, 0.25)


@EVERYWHERE
def test_where_the_answer_ends(service, path):
    url, body = BODIES[path]
    given = {"stop_sequences": ["wor"], "no_stop_trim": True, "ignore_eos": True}
    answer = service.http.post(url, json={**body, **given})
    assert '"hello wor"' in answer.text
    assert service.engine.submitted[-1].sampling.stop_token_ids == []


@EVERYWHERE
def test_prefixes_that_are_kept_apart(service, path):
    one, other = (sent(service, path, cache_salt=salt).salt for salt in ("a", "b"))
    assert one != other


@EVERYWHERE
@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"typ_p": 0.6}, "typ_p"),
        ({"xtc_probability": 0.5, "xtc_threshold": 0.1}, "xtc_probability"),
        ({"dry_multiplier": 0.8, "dry_base": 1.75}, "dry_multiplier"),
        ({"mirostat": 1}, "mirostat"),
        ({"lora_request": "my-adapter"}, "lora_request"),
        ({"stop_regex": r"\d"}, "stop_regex"),
        ({"structural_tag": "{}"}, "structural_tag"),
        ({"extra_body": {"guided_choice": ["a"]}}, "extra_body.guided_choice"),
        ({"session_params": {"id": "s"}}, "session_params"),
    ],
)
def test_refused(service, path, fields, name):
    url, body = BODIES[path]
    answer = service.http.post(url, json={**body, **fields})
    assert answer.status_code == 400
    assert f"`{name}` is not supported by this server: " in answer.text


@EVERYWHERE
def test_an_adapter_that_is_not_there(service, path):
    url, body = BODIES[path]
    answer = service.http.post(url, json={**body, "lora_path": "my-adapter"})
    assert answer.status_code in (400, 404)  # in the API's own form
    assert "my-adapter" in answer.text
