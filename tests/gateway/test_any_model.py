"""`--any-model`: the lone model answers whatever name a request gives."""

from __future__ import annotations

import pytest

from firelane.errors import UsageError
from firelane.gateway.config import GatewayConfig, ModelConfig

USER = [{"role": "user", "content": "hi"}]
NAMES = ["gpt-4o", "claude-sonnet-4-5", "llama3.2:latest", "a/b c", ""]


@pytest.fixture
def open_service(make_service):
    return make_service(any_model=True)


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_answered_and_repeated(open_service, name):
    body = {"model": name, "messages": USER}
    answer = open_service.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert answer.json()["model"] == (name or "toy")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": USER, "max_tokens": 9}),
        ("/api/chat", {"messages": USER, "stream": False}),
        ("/api/generate", {"prompt": "a", "stream": False}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_all_apis_take_it(open_service, service, path, body):
    answer = open_service.http.post(path, json={"model": "gpt-4o", **body})
    assert (answer.status_code, answer.json()["model"]) == (200, "gpt-4o"), answer.text
    assert service.http.post(path, json={"model": "gpt-4o", **body}).status_code == 404


def test_lists_name_what_is_there(open_service):
    listed = open_service.http.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["toy", "alias"]


def test_it_is_for_one_model(tmp_path):
    models = tuple(ModelConfig(model_dir=tmp_path, names=(name,)) for name in "ab")
    with pytest.raises(UsageError, match="--any-model is for one model"):
        GatewayConfig(models=models, any_model=True)
