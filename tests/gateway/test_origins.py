"""Which pages may use a server, and under which names it answers to them."""

from __future__ import annotations

import socket

import pytest

from firelane.errors import UsageError
from firelane.gateway.http.origins import is_local, origin_policy
from firelane.gateway.tenants.keyfile import hashed

KEY = "fl-acme-0123456789abcdef"
FOREIGN = "https://page.example"
ASK = {"prompt": "a"}


def ask(service, origin=None, host=None, key=None, method="POST"):
    headers = {"origin": origin, "host": host, "authorization": key and f"Bearer {key}"}
    headers = {name: value for name, value in headers.items() if value is not None}
    return service.http.request(method, "/v1/completions", json=ASK, headers=headers)


@pytest.mark.parametrize(
    "origin",
    [
        FOREIGN,
        "null",
        "http://localhost.page.example",
        "chrome-extension://a",
        "http://internal.page.example",
    ],
)
def test_without_keys_foreign_pages_are_refused_before_anything_is_done(service, origin):
    for method in ("POST", "OPTIONS"):
        answer = ask(service, origin, method=method)
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
    assert service.engine.submitted == []


@pytest.mark.parametrize(
    "origin",
    [
        *(
            "http://localhost:3000",
            "http://127.0.0.1",
            "https://[::1]:8443",
            "http://host.docker.internal:3000",
        ),
        *("app://obsidian.md", "vscode-webview://1a2b", "tauri://localhost", "file://"),
    ],
)
def test_without_keys_local_pages_may_ask(service, origin):
    for method in ("OPTIONS", "POST"):
        answer = ask(service, origin, method=method)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["vary"] == "origin"
    assert ask(service).headers.get("access-control-allow-origin") is None


def test_a_preflight_says_what_may_be_sent(service):
    answer = ask(service, "http://localhost:3000", method="OPTIONS")
    assert (answer.status_code, answer.content) == (200, b"")
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"].split(", ")
    assert {"authorization", "content-type"} <= set(allowed)
    assert service.http.options("/nowhere").status_code == 404


def test_every_answer_to_a_page_can_be_read_by_it(service):
    bodies = [{"prompt": "a"}, {"prompt": "a", "stream": True}, {"prompt": 3}]
    origin = {"origin": "http://localhost:1"}
    answers = [service.http.post("/v1/completions", json=body, headers=origin) for body in bodies]
    assert [a.status_code for a in answers] == [200, 200, 400]
    assert {a.headers["access-control-allow-origin"] for a in answers} == {"http://localhost:1"}


@pytest.mark.parametrize(
    "host", ["rebound.example", "rebound.example:80", "192.168.1.5", "0.0.0.0:1", "a:b:c"]
)
def test_a_loopback_server_without_keys_answers_to_local_names_alone(service, host):
    assert ask(service, host=host).status_code == 403
    assert ask(service, f"http://{host}", host).status_code == 403
    assert service.engine.submitted == []


@pytest.mark.parametrize(
    "host",
    ["host.docker.internal:8000", "gateway.internal", socket.gethostname(), f"{socket.gethostname()}:8000"],
)
def test_names_of_this_machine_and_those_that_no_public_dns_has(service, host):
    assert ask(service, host=host).status_code == 200
    assert ask(service, FOREIGN, host=host).status_code == 403


def test_named_origins_may_ask_and_name_the_server(make_service):
    service = make_service(allow_origins=("https://page.example",))
    assert ask(service, FOREIGN).headers["access-control-allow-origin"] == FOREIGN
    assert ask(service, FOREIGN, "page.example").status_code == 200
    assert ask(service, "https://other.example").status_code == 403


def test_all_origins_may_be_allowed(make_service):
    service = make_service(allow_origins=("*",))
    answer = ask(service, FOREIGN, "rebound.example")
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")


def test_with_keys_any_page_that_has_one_may_ask(make_service, tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(f'[tenants.acme]\nkeys = ["{hashed(KEY)}"]\n')
    service = make_service(api_keys=path)
    answer = ask(service, FOREIGN, "api.example", KEY)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")
    assert ask(service, FOREIGN, "api.example").status_code == 401
    narrow = make_service(api_keys=path, allow_origins=(FOREIGN,))
    assert ask(narrow, FOREIGN, "api.example", KEY).status_code == 200
    assert ask(narrow, "https://other.example", "api.example", KEY).status_code == 403


@pytest.mark.parametrize("origin", ["page.example", "https://page.example/", "https://", "http:page"])
def test_what_is_no_origin(origin):
    with pytest.raises(UsageError, match="--allow-origin"):
        origin_policy([origin], keyless=True, loopback=True)


def test_local_names():
    local = (b"localhost", b"a.localhost:1", b"127.8.0.1", b"[::1]:1", b"[::1]")
    foreign = (b"", b":1", b"localhost.a", b"10.0.0.1", b"[::2]", b"[", b"\xff", b"127.0.0.1.a")
    assert [is_local(name) for name in (*local, *foreign)] == [True] * len(local) + [False] * len(foreign)
