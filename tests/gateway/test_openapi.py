"""The published OpenAPI document: all routes, valid, and true of what is answered."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from jsonschema import Draft202012Validator

from firelane.engine_state import LinkState


@pytest.fixture
def document(service) -> Any:
    return service.http.get("/openapi.json").json()


def routes(service: Any) -> set[tuple[str, str]]:
    table = service.gateway.app._table
    found = {path.decode(): at for path, at in table._fixed.items()} | table._patterns
    return {
        (path.replace("+}", "}"), method.decode().lower())
        for path, at in found.items()
        for method in at.routes
    }


def operations(document: Any) -> dict[tuple[str, str], Any]:
    return {(path, method): op for path, ops in document["paths"].items() for method, op in ops.items()}


def test_every_route_is_in_it_and_says_what_it_is(service, document):
    listed = operations(document)
    assert set(listed) == routes(service)
    assert [where for where, operation in listed.items() if not operation["summary"]] == []
    ids = [operation["operationId"] for operation in listed.values()]
    assert len(set(ids)) == len(ids)


def test_every_operation_is_whole(document):
    for (path, _), operation in operations(document).items():
        named = {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"}
        assert named == {part.strip("{}") for part in path.split("/") if part.startswith("{")}
        assert {"200", "4XX", "503"} <= set(operation["responses"])


def test_every_schema_is_one(document):
    Draft202012Validator.check_schema({"$defs": document["components"]["schemas"]})
    names = set(document["components"]["schemas"])
    seen: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                seen.add(value["$ref"].removeprefix("#/components/schemas/"))
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(document)
    assert seen == names


ASK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
CALLS = [
    ("post", "/v1/completions", "/v1/completions", {"prompt": "x", "max_tokens": 3, "logprobs": 1}),
    ("post", "/v1/chat/completions", "/v1/chat/completions", ASK),
    ("post", "/v1/chat/completions", "/v1/chat/completions", ASK | {"logprobs": True, "top_logprobs": 1}),
    ("post", "/v1/responses", "/v1/responses", {"input": "x", "metadata": {"a": "b"}}),
    ("post", "/v1/messages", "/v1/messages", ASK),
    ("post", "/v1/messages/count_tokens", "/v1/messages/count_tokens", ASK),
    ("post", "/api/chat", "/api/chat", {"model": "toy", "messages": ASK["messages"], "stream": False}),
    ("post", "/api/generate", "/api/generate", {"model": "toy", "prompt": "x", "stream": False}),
    ("post", "/api/embed", "/api/embed", {"model": "toy", "input": "x"}),
    ("post", "/api/embeddings", "/api/embeddings", {"model": "toy", "prompt": "x"}),
    ("post", "/api/show", "/api/show", {"model": "toy"}),
    ("get", "/api/tags", "/api/tags", None),
    ("get", "/api/ps", "/api/ps", None),
    ("get", "/api/version", "/api/version", None),
    ("post", "/v1/score", "/v1/score", {"text_1": "x", "text_2": "y", "pooling": "last"}),
    ("post", "/v1/rerank", "/v1/rerank", {"query": "x", "documents": ["y"], "pooling": "last"}),
    (
        *("post", "/v1/systemone", "/v1/systemone"),
        {"state": "x", "questions": {"q": {"type": "score", "criteria": ["a", "b"]}, "p": {"type": "noul"}}},
    ),
    (
        *("post", "/v1/decisions", "/v1/decisions"),
        {"input": "x", "questions": [{"type": "predicate", "instructions": "?"}]},
    ),
    ("post", "/v1/chat/completions/render", "/v1/chat/completions/render", ASK),
    ("post", "/v1/completions/render", "/v1/completions/render", {"prompt": "x"}),
    ("get", "/tokenizer_info", "/tokenizer_info", None),
    ("get", "/ping", "/ping", None),
    ("post", "/tokenize", "/tokenize", {"prompt": "x"}),
    ("post", "/detokenize", "/detokenize", {"tokens": [7]}),
    (
        *("post", "/client/v4/accounts/{account}/ai/run/{model}"),
        *("/client/v4/accounts/a/ai/run/toy", {"prompt": "x", "max_tokens": 3}),
    ),
    ("get", "/v1/models", "/v1/models", None),
    ("get", "/v1/models/{model}", "/v1/models/toy", None),
    ("get", "/health", "/health", None),
    ("get", "/version", "/version", None),
]


def check(document: Any, operation: Any, status: str, answer: Any) -> None:
    schema = operation["responses"][status]["content"]["application/json"]["schema"]
    jsonschema.validate(answer.json(), {**schema, "components": document["components"]})


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[1])
def test_answers_are_as_documented(service, document, call):
    method, path, url, body = call
    answer = service.http.request(method, url, json=body)
    assert answer.status_code == 200
    check(document, document["paths"][path][method], "200", answer)


@pytest.mark.parametrize("call", [call for call in CALLS if call[3]], ids=lambda call: call[1])
def test_refusals_are_as_documented(service, document, call):
    method, path, url, _ = call
    answer = service.http.request(method, url, json={"no_such_field": 1})
    assert answer.status_code == 400
    check(document, document["paths"][path][method], "4XX", answer)


def test_an_engine_that_is_gone_is_as_documented(service, document):
    service.run(service.engine.die)
    service.wait_for(lambda: service.link.state is LinkState.DEAD)
    for method, path, url, body in CALLS:
        answer = service.http.request(method, url, json=body)
        if answer.status_code == 503:
            check(document, document["paths"][path][method], "503", answer)
