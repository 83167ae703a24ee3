"""The prompts of requests, and what else vLLM's tools ask of a tokenizer and a server."""

from __future__ import annotations

import pytest

from firelane.engine_state import LinkState

ASK = {"messages": [{"role": "user", "content": "hi"}]}


def post(service, path, body):
    answer = service.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_conversation(service):
    made = post(service, "/v1/chat/completions/render", ASK)
    assert made["text"] == "<|bos|><|user|>hi\n<|assistant|>"
    assert made["token_ids"] == post(service, "/tokenize", ASK)["tokens"]
    post(service, "/v1/chat/completions", ASK)
    (request,) = service.engine.submitted
    assert list(memoryview(request.prompt).cast("i")) == made["token_ids"]


def test_texts_and_ids(service):
    path, ids = "/v1/completions/render", service.ids("hi")
    assert post(service, path, {"prompt": "hi"}) == [{"token_ids": [0, *ids], "text": "hi"}]
    assert len(post(service, path, {"prompt": ["a", "b"]})) == 2
    assert post(service, path, {"prompt": ids}) == [{"token_ids": ids, "text": "hi"}]
    cut = post(service, path, {"prompt": "hello", "truncate_prompt_tokens": 2})
    assert cut == [{"token_ids": service.ids("lo"), "text": "lo"}]


@pytest.mark.parametrize("path", ["/v1/chat/completions/render", "/v1/completions/render"])
def test_what_would_be_refused_is(service, path):
    answer = service.http.post(path, json={**ASK, "prompt": "x", "temperature": 3})
    assert answer.status_code == 400
    asked = ASK if "chat" in path else {"prompt": "x"}
    assert service.http.post(path, json={**asked, "model": "other"}).status_code == 404


def test_tokenizer_info(service):
    made = service.http.get("/tokenizer_info").json()
    template = made.pop("chat_template")
    assert template.startswith("{{ bos_token }}")
    assert made == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "vocab_size": service.core.get_vocab_size(),
        "model_max_length": 512,
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "pad_token": None,
        "unk_token": None,
    }
    assert service.http.get("/tokenizer_info?model=other").status_code == 404


def test_ping_is_health(service):
    for method in ("GET", "POST"):
        assert service.http.request(method, "/ping").status_code == 200
    service.run(service.engine.die)
    service.wait_for(lambda: service.link.state is LinkState.DEAD)
    for method in ("GET", "POST"):
        assert service.http.request(method, "/ping").status_code == 503
