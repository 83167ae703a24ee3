"""Large bodies: where they are worked on, how many at a time, and which are too much."""

from __future__ import annotations

import threading

import pytest
from raw_client import post

from firelane.api.decode import BodyDecoder
from firelane.gateway import bodies
from firelane.gateway.config import HttpLimits
from firelane.text.rendering.template_process import TemplateRenderer

LONG = {"role": "user", "content": "x" * (200 << 10)}
PATHS = {
    "/v1/chat/completions": {"messages": [LONG]},
    "/v1/responses": {"input": [LONG]},
    "/v1/responses/input_tokens": {"input": [LONG]},
    "/tokenize": {"messages": [LONG]},
    "/client/v4/accounts/a/ai/run/toy": {"messages": [LONG]},
}


@pytest.fixture
def large(make_service):
    return make_service(limits=HttpLimits(body_bytes=64 << 20))


@pytest.mark.parametrize("path", PATHS)
def test_large_bodies_are_decoded_off_the_loop(large, monkeypatch, path):
    threads: list[threading.Thread] = []
    real = BodyDecoder.decode

    def decode(self, body):
        threads.append(threading.current_thread())
        return real(self, body)

    monkeypatch.setattr(BodyDecoder, "decode", decode)
    answer = large.http.post(path, json=PATHS[path])
    assert answer.status_code in (200, 400), answer.text  # 400: over the toy model's context
    assert len(threads) == 1
    assert large.run(threading.current_thread) not in threads


def test_one_large_body_at_a_time(large, monkeypatch):
    running, most = [], []
    real = BodyDecoder.decode

    def decode(self, body):
        running.append(body)
        most.append(len(running))
        try:
            return real(self, body)
        finally:
            running.pop()

    monkeypatch.setattr(BodyDecoder, "decode", decode)
    ask = lambda: large.http.post("/v1/chat/completions", json={"messages": [LONG]})  # noqa: E731
    clients = [threading.Thread(target=ask) for _ in range(6)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert most == [1] * 6


TOO_LONG = {"role": "user", "content": "x" * (3 << 20)}
CHATS = {
    "/v1/chat/completions": {"messages": [TOO_LONG]},
    "/v1/chat/completions/render": {"messages": [TOO_LONG]},
    "/v1/messages": {"messages": [TOO_LONG], "model": "toy", "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": [TOO_LONG], "model": "toy"},
    "/v1/responses": {"input": [TOO_LONG]},
    "/api/chat": {"model": "toy", "messages": [TOO_LONG]},
    "/tokenize": {"messages": [TOO_LONG]},
    "/client/v4/accounts/a/ai/run/toy": {"messages": [TOO_LONG]},
}


@pytest.mark.parametrize("path", CHATS)
def test_conversations_that_cannot_fit_are_not_rendered(large, monkeypatch, path):
    monkeypatch.setattr(TemplateRenderer, "render", None)
    answer = large.http.post(path, json=CHATS[path])
    assert answer.status_code == 400
    assert "has 3145728 bytes of text: at most 2097152 are taken" in answer.text


def test_a_long_conversation_may_be_truncated(large):
    body = {"messages": [TOO_LONG], "truncate_prompt_tokens": 9, "max_tokens": 1}
    answer = large.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens"] == 9


def test_more_than_a_template_may_write_is_not_rendered_to_be_truncated(large, monkeypatch):
    monkeypatch.setattr(TemplateRenderer, "render", None)
    body = {"messages": [{"role": "user", "content": "x" * (9 << 20)}] * 2, "truncate_prompt_tokens": 9}
    answer = large.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "your messages has 18874368 characters: at most 16777216 are taken" in answer.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": [[7] * 1000] * 1100}),
        ("/v1/completions", {"prompt": "x", "metadata": [[]] * 500_000}),
        ("/v1/completions", {"prompt": "x", "metadata": [{}] * 500_000}),
        ("/v1/completions", {"prompt": "x", "logit_bias": {str(i): 1 for i in range(300_000)}}),
        ("/v1/embeddings", {"input": [[7] * 1000] * 1100}),
        ("/v1/embeddings", {"input": ["a"] * 600_000}),
    ],
)
def test_too_many_values_are_refused_before_they_are_decoded(large, monkeypatch, path, body):
    monkeypatch.setattr(BodyDecoder, "decode", None)
    answer = large.http.post(path, json=body)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "too_many_values"


def test_many_token_ids_are_taken(large):
    answer = large.http.post("/v1/completions", json={"prompt": [[7] * 1000] * 1000, "max_tokens": 1})
    assert answer.json()["error"]["code"] != "too_many_values", answer.text  # but over the toy's queue


def test_a_crowd_of_large_bodies_is_told_to_come_back(large, monkeypatch):
    monkeypatch.setattr(bodies, "QUEUED_BYTES", 100)
    answer = large.http.post("/v1/chat/completions", json={"messages": [LONG]})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_a_body_is_not_kept(service, raw):
    service.run(setattr, service.engine, "held", True)
    raw().send(post())
    service.wait_for(lambda: bool(service.engine.running))
    (connection,) = service.gateway._connections._open
    assert connection._exchange.request.body == b""


def test_small_bodies_take_no_thread(service, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(bodies, "_decode_large", None)
        answer = service.http.post(
            "/v1/completions", json={"prompt": "x" * 1000, "truncate_prompt_tokens": 9}
        )
    assert answer.status_code == 200
