"""Tenants through the server: keys, quotas, usage, cost, the line in the log."""

from __future__ import annotations

import json
import logging
import socket

import httpx
import openai
import pytest

from firelane.gateway.tenants.keyfile import hashed

ACME, OTHER, BOSS = "fl-acme-0123456789abcdef", "fl-other-0123456789abcdef", "fl-boss-0123456789abcdef"
SECOND = "fl-acme-second-0123456789"
ASK = {"model": "toy", "prompt": "say", "max_tokens": 5}


def key_file(path, acme=""):
    path.write_text(
        f'[tenants.acme]\nkeys = ["{hashed(ACME)}", "{hashed(SECOND)}"]\n{acme}\n'
        f'[tenants.other]\nkeys = ["{hashed(OTHER)}"]\nweight = 3\n'
        f'[tenants.boss]\nkeys = ["{hashed(BOSS)}"]\nadmin = true\n'
    )
    return path


@pytest.fixture
def serve(make_service, tmp_path):
    def start(acme="", **changes):
        return make_service(api_keys=key_file(tmp_path / "keys.toml", acme), **changes)

    return start


def ask(service, key=ACME, path="/v1/completions", **changes):
    headers = {"authorization": f"Bearer {key}", **changes.pop("headers", {})}
    return service.http.post(path, json={**ASK, **changes}, headers=headers)


def metric(service, name, tenant):
    text = service.http.get("/metrics", headers={"authorization": f"Bearer {BOSS}"}).text
    line = next(
        x for x in text.splitlines() if x.startswith(f"firelane:tenant_{name}_total") and f'"{tenant}"' in x
    )
    return float(line.split()[-1])


def test_a_key_is_needed(serve):
    service = serve()
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
        answer = service.http.post("/v1/completions", json=ASK, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
    assert ask(service).status_code == 200
    assert service.http.post("/v1/completions", json=ASK, headers={"x-api-key": ACME}).status_code == 200
    assert service.http.get("/health").status_code == 200
    assert metric(service, "rejected", "unknown") == 3
    with pytest.raises(openai.AuthenticationError):
        service.openai.completions.create(**ASK)


def test_metrics_are_for_admins(serve):
    service = serve()
    assert service.http.get("/metrics").status_code == 401
    assert service.http.get("/metrics", headers={"authorization": f"Bearer {ACME}"}).status_code == 403
    assert service.http.get("/metrics", headers={"authorization": f"Bearer {BOSS}"}).status_code == 200


def test_the_engine_hears_who_asks(serve):
    service = serve()
    for key in (ACME, SECOND, OTHER):
        assert ask(service, key).status_code == 200
    acme, second, other = service.engine.submitted
    assert (acme.tenant, acme.weight, other.tenant, other.weight) == ("acme", 1.0, "other", 3.0)
    assert acme.salt == second.salt
    assert acme.salt != other.salt


def test_models(serve):
    service = serve('models = ["alias"]')
    refused = ask(service)
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "model_not_found"
    assert ask(service, model="alias").status_code == 200
    listed = service.http.get("/v1/models", headers={"authorization": f"Bearer {ACME}"}).json()["data"]
    assert [model["id"] for model in listed] == ["alias"]


def test_requests_a_minute(serve):
    service = serve("requests_per_minute = 2")
    first, second, third = ask(service), ask(service), ask(service)
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert second.headers["x-ratelimit-remaining-requests"] == "0"
    assert third.status_code == 429
    assert third.json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(third.headers["retry-after"]) <= 60
    assert third.headers["x-ratelimit-remaining-requests"] == "0"
    assert ask(service, OTHER).status_code == 200
    assert metric(service, "rejected", "acme") == 1


def test_the_openai_client_understands(serve):
    service = serve("requests_per_minute = 1")
    client = service.openai.with_options(api_key=ACME)
    raw = client.completions.with_raw_response.create(**ASK)
    assert raw.headers["x-ratelimit-limit-requests"] == "1"
    assert raw.headers["x-ratelimit-reset-requests"] == "1m0s"
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(**ASK)
    assert caught.value.code == "rate_limit_exceeded"


@pytest.mark.parametrize("stream", [True, False])
def test_tokens_a_minute_come_back(serve, stream):
    """Prompt (4) and max_tokens are held; what was not used is free again at the end."""
    service = serve("tokens_per_minute = 100")
    service.text = "a"  # one token, then the end
    for _ in range(3):
        answer = ask(service, max_tokens=80, stream=stream)
        assert answer.status_code == 200
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) in range(3, 6)
    assert ask(service, max_tokens=99, n=1, prompt="b" * 60).status_code == 429


def test_tokens_of_a_client_that_left_come_back(serve):
    service = serve("tokens_per_minute = 100\nmax_concurrent = 1")
    service.run(setattr, service.engine, "held", True)
    body = json.dumps({**ASK, "max_tokens": 90}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %b\r\n" % ACME.encode()
    with socket.create_connection(("127.0.0.1", service.gateway.port)) as client:
        client.sendall(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        service.wait_for(lambda: bool(service.engine.running))
        refused = ask(service)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
    service.wait_for(lambda: service.gateway.in_flight == 0)
    service.run(setattr, service.engine, "held", False)
    assert ask(service, max_tokens=90).status_code == 200
    assert metric(service, "prompt_tokens", "acme") == 4


def test_reload_while_a_request_is_in_flight(serve, tmp_path):
    service = serve()
    service.run(setattr, service.engine, "held", True)
    request = service.http.build_request(
        "POST", "/v1/completions", json={**ASK, "stream": True}, headers={"authorization": f"Bearer {ACME}"}
    )
    with (
        httpx.Client(trust_env=False, timeout=600) as client,
        _late(service, client, request, tmp_path) as answer,
    ):
        assert answer.read().endswith(b"data: [DONE]\n\n")
    assert ask(service, ACME).status_code == 401


def _late(service, client, request, tmp_path):
    """The key is taken out of the file when the request is with the engine."""
    import contextlib
    import threading

    def reload():
        service.wait_for(lambda: bool(service.engine.running))
        (tmp_path / "keys.toml").write_text(f'[tenants.boss]\nkeys = ["{hashed(BOSS)}"]\nadmin = true')
        service.run(service.gateway.reload)
        service.run(setattr, service.engine, "held", False)
        service.run(service.engine.step_on)

    thread = threading.Thread(target=reload)
    thread.start()
    answer = client.send(request, stream=True)
    thread.join()
    return contextlib.closing(answer)


def test_usage_and_cost(serve, tmp_path, caplog):
    prices = tmp_path / "prices.toml"
    prices.write_text("[models.toy]\ninput = 1000000\ncached_input = 0\noutput = 10000000")
    service = serve(prices=prices)
    service.run(setattr, service.engine, "cached_tokens", 3)
    caplog.set_level(logging.INFO, "firelane")
    answer = ask(service, headers={"x-session-affinity": "s1", "x-request-id": "my-id"})
    assert answer.status_code == 200
    found = {
        n: metric(service, n, "acme")
        for n in ("requests", "prompt_tokens", "cached_tokens", "generated_tokens")
    }
    assert found == {"requests": 1, "prompt_tokens": 4, "cached_tokens": 3, "generated_tokens": 5}
    assert metric(service, "cost", "acme") == pytest.approx(1 + 50)
    text = service.http.get("/metrics", headers={"authorization": f"Bearer {BOSS}"}).text
    assert "firelane:session_affinity_requests_total 1.0" in text
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("request_ended")]
    for part in (
        "id=my-id",
        "tenant=acme",
        "path=/v1/completions",
        "status=200",
        "prompt_tokens=4",
        "cost=51",
    ):
        assert part in line
    assert "finish_reason=length" in line


def test_an_alias_has_the_price_and_the_access_of_its_model(serve, tmp_path):
    prices = tmp_path / "prices.toml"
    prices.write_text("[models.toy]\ninput = 1000000\n[models.'*']\ninput = 7000000")
    service = serve('models = ["toy"]', prices=prices, aliases=(("nick", "toy"),))
    answer = ask(service, model="nick")
    assert answer.json()["model"] == "nick"
    assert metric(service, "cost", "acme") == pytest.approx(4)
    assert ask(service, model="alias").status_code == 404


def test_the_number_of_labels_is_bounded(service, monkeypatch):
    from firelane.gateway.http.exchange import Request
    from firelane.gateway.requests import usage_log
    from firelane.gateway.tenants.tenant import Tenant

    monkeypatch.setattr(usage_log, "MAX_TENANT_LABELS", 2)

    class Exchange:
        id = "x"

    for name in ("a", "b", "c", "d", "a"):
        exchange = Exchange()
        exchange.request = Request()
        exchange.request.tenant = Tenant(name=name)
        service.gateway.services.usage.refused(exchange, 400, "x")
    values = service.gateway.services.usage.rejected.values
    assert values == {"a": 2, "b": 1, "others": 2}
