"""Requests that are refused cost no template and no tokeniser, whatever API they come by."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest
from batch_support import hold, hurry, results, start, wait

from firelane.engine_state import LinkState
from firelane.gateway.requests.admission import HELD
from firelane.gateway.tenants.keyfile import hashed
from firelane.text.rendering.template import ChatTemplate
from firelane.text.tokens.tokenizer import Tokenizer

KEY = "fl-acme-0123456789abcdef"
CHAT = {"messages": [{"role": "user", "content": "hey"}], "max_tokens": 3}
RUN = "/client/v4/accounts/a/ai/run"
REQUESTS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hey", "max_tokens": 3},
    "/v1/responses": {
        "input": [{"role": "user", "content": "hey " * 300}, {"role": "user", "content": "you"}],
        "truncation": "auto",
        "max_output_tokens": 3,
    },
    "/v1/embeddings": {"input": "hey"},
    f"{RUN}/toy": {"prompt": "hey"},
}
TEXT_ONLY = {
    "/tokenize": {"messages": CHAT["messages"]},
    "/detokenize": {"tokens": [7]},
    "/v1/responses/input_tokens": REQUESTS["/v1/responses"],
}


@pytest.fixture
def work(monkeypatch):
    """Names of the renderings and tokenisations that were done."""
    done: list[str] = []

    def noted(owner: type, name: str) -> None:
        real = getattr(owner, name)

        def call(*args, **kwargs):
            done.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    noted(ChatTemplate, "render")
    noted(Tokenizer, "encode")
    return done


def post(service, path, body, **changes):
    headers = {"authorization": f"Bearer {KEY}"}
    return service.http.post(path, json={**body, **changes}, headers=headers)


def with_keys(make_service, tmp_path, limits, **changes):
    path = tmp_path / "keys.toml"
    path.write_text(f'[tenants.acme]\nkeys = ["{hashed(KEY)}"]\n{limits}\n')
    return make_service(api_keys=path, **changes)


@pytest.mark.parametrize("path", REQUESTS)
def test_served_requests_are_seen_by_the_count(service, work, path):
    assert post(service, path, REQUESTS[path]).status_code == 200
    assert "encode" in work


@pytest.mark.parametrize("path", REQUESTS)
def test_over_quota(make_service, tmp_path, work, path):
    service = with_keys(make_service, tmp_path, "requests_per_minute = 1")
    assert post(service, "/v1/completions", REQUESTS["/v1/completions"]).status_code == 200
    work.clear()
    answer = post(service, path, REQUESTS[path])
    assert answer.status_code == 429
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert work == []
    assert service.model.admission.held == 0


@pytest.mark.parametrize("path", TEXT_ONLY)
def test_requests_without_an_engine_have_a_quota_too(make_service, tmp_path, work, path):
    service = with_keys(make_service, tmp_path, "requests_per_minute = 2\nmax_concurrent = 1")
    service.run(service.engine.die)
    service.wait_for(lambda: service.link.state is LinkState.DEAD)
    for status in (200, 200, 429):
        work.clear()
        assert post(service, path, TEXT_ONLY[path]).status_code == status
    assert work == []
    assert service.model.admission.held == 0


@pytest.mark.parametrize("path", REQUESTS)
def test_queue_full(make_service, work, path):
    service = make_service(max_queue=0)
    service.model.admission.record.own[HELD] = service.engine.max_num_seqs
    assert post(service, path, REQUESTS[path]).status_code == 429
    assert work == []
    service.model.admission.record.own[HELD] = 0


@pytest.mark.parametrize("path", REQUESTS)
def test_wrong_model(service, work, path):
    path, body = path.replace("/toy", "/other"), REQUESTS[path]
    answer = post(service, path, body, **({} if path.startswith(RUN) else {"model": "other"}))
    assert answer.status_code == (400 if path.startswith(RUN) else 404)
    assert work == []


@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("state", ["draining", "down"])
def test_no_engine(service, work, path, state):
    if state == "draining":
        service.model.admission.draining = True
    else:
        service.run(service.engine.die)
        service.wait_for(lambda: service.link.state is LinkState.DEAD)
    assert post(service, path, REQUESTS[path]).status_code == 503
    assert work == []


def test_lines_of_batches_wait_for_idle_seats_unrendered(make_service, tmp_path, monkeypatch, work):
    hurry(monkeypatch)
    service = make_service(data_dir=tmp_path)
    service.model.admission.record.own[HELD] = service.engine.max_num_seqs
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}
    batch = start(service, [line], url=line["url"])
    wait(service, batch, "in_progress")
    service.call(asyncio.sleep(0))
    assert work == []
    service.model.admission.record.own[HELD] = 0
    done = wait(service, batch)
    assert len(results(service, done.output_file_id)) == 1
    assert work.count("encode") == 1


def test_the_quota_of_tokens_counts_when_the_length_is_known(make_service, tmp_path, work):
    service = with_keys(make_service, tmp_path, "tokens_per_minute = 20")
    answer = post(service, "/v1/completions", {"prompt": "a", "max_tokens": 3})
    assert answer.headers["x-ratelimit-remaining-tokens"] == "15"
    work.clear()
    assert post(service, "/v1/completions", {"prompt": "a" * 18, "max_tokens": 1}).status_code == 429
    assert work == ["encode"]
    assert service.model.admission.held == 0
    answer = post(service, "/v1/completions", {"prompt": "a", "max_tokens": 3})
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
def test_an_engine_that_dies_while_a_prompt_is_tokenised(service, monkeypatch, path):
    """One 503, nothing left in the queue, and no latency of a request that never began."""
    tokenising, dead = threading.Event(), threading.Event()
    real = Tokenizer.encode

    def slow(self, text, **kwargs):
        ids = real(self, text, **kwargs)
        tokenising.set()
        assert dead.wait(10)
        return ids[:100]

    monkeypatch.setattr(Tokenizer, "encode", slow)
    text = "x" * 20_000
    body = {"input": text} if path == "/v1/embeddings" else {"messages": [{"role": "user", "content": text}]}
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(post(service, path, body)))
    thread.start()
    assert tokenising.wait(10)
    service.run(service.engine.die)
    service.wait_for(lambda: service.link.state is LinkState.DEAD)
    dead.set()
    thread.join(10)
    assert answers[0].status_code == 503
    admission = service.model.admission
    assert (admission.held, admission.line) == (0, {})
    service.run(admission.sweep, service.loop.time() + 10_000)
    text = service.http.get("/metrics").text
    assert 'firelane:http_responses_total{status="503"} 1.0' in text
    assert 'vllm:e2e_request_latency_seconds_count{model_name="toy"} 0.0' in text


def test_a_link_that_refuses_leaves_nothing_of_the_request(service, monkeypatch):
    """An engine may die between the check and the submission."""
    from firelane.errors import EngineDeadError

    calls = []

    def submit(request, *_):
        calls.append(request.id)
        raise EngineDeadError("gone")

    monkeypatch.setattr(service.link, "submit", submit)
    assert post(service, "/v1/completions", {"prompt": "a", "n": 3}).status_code == 503
    assert len(calls) == 1
    admission = service.model.admission
    assert (admission.held, admission.line) == (0, {})
    text = service.http.get("/metrics").text
    assert 'firelane:http_responses_total{status="503"} 1.0' in text
    hold(service, held=False)
