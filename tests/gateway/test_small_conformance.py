"""Clients of other servers send and read some things beside the main fields."""

from __future__ import annotations

import pytest

USER = [{"role": "user", "content": "x"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/files", "/v1/conversations/c/items", "/tokenizer_info"])
def test_a_query_that_clients_of_anthropic_add(service, path):
    plain, asked = service.http.get(path), service.http.get(path, params={"beta": "true"})
    assert asked.status_code == plain.status_code
    assert service.http.get("/v1/files", params={"gamma": "true"}).status_code != 200


def test_compaction_says_what_to_do(service):
    answer = service.http.post("/v1/responses/compact", json={"input": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_endpoint")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [("/v1/chat/completions", 400, "missing_parameter"), ("/v1/nothing", 404, "unknown_path")],
)
def test_codes_are_words(service, path, status, code):
    answer = service.http.post(path, json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    wrong = service.http.post(CHAT, json={"messages": USER, "top_logprobs": 3})
    assert wrong.json()["error"]["code"] == "invalid_request"
    foreign = service.http.post(CHAT, json={"messages": USER}, headers={"origin": "https://page.example"})
    assert foreign.json()["error"]["code"] == "insufficient_permissions"


@pytest.mark.parametrize("fields", [{"max_tokens": -1}, {"n_predict": -1}, {"max_completion_tokens": -1}])
def test_no_limit(service, fields):
    for path, body in ((CHAT, {"messages": USER}), (COMPLETIONS, {"prompt": "x"})):
        assert service.http.post(path, json={**body, **fields}).status_code == 200
        request = service.engine.submitted[-1]
        assert request.sampling.max_tokens == 512 - len(request.prompt) // 4


def test_keywords_that_are_not_held_are_told(service):
    schema = {"type": "array", "items": {"type": "string", "format": "colour"}, "uniqueItems": True}
    names = "schema.format, schema.uniqueItems"
    for path, body in ((CHAT, {"messages": USER}), (COMPLETIONS, {"prompt": "x"})):
        answer = service.http.post(path, json={**body, "guided_json": schema})
        assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, names)
        assert "uniqueItems" not in service.engine.submitted[-1].grammar.text
    tool = {"name": "paint", "parameters": {"type": "object", "properties": {"colours": schema}}}
    forced = {"tools": [{"type": "function", "function": tool}], "tool_choice": "required"}
    assert service.http.post(CHAT, json={"messages": USER, **forced}).headers["x-ignored-fields"] == names
    free = service.http.post(CHAT, json={"messages": USER, "tools": forced["tools"]})
    assert "x-ignored-fields" not in free.headers
