"""Sessions of requests, on their way to the policy that chooses an engine."""

from __future__ import annotations

import pytest

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
COMPLETION = {"prompt": "hello", "max_tokens": 2}
RESPONSE = {"input": "hello", "max_output_tokens": 16}
HEADER = {"x-session-affinity": "s1"}


@pytest.mark.parametrize(
    ("path", "body", "headers", "session"),
    [
        ("chat/completions", CHAT, HEADER, b"s1"),
        ("chat/completions", CHAT | {"prompt_cache_key": "k"}, {}, b"k"),
        ("chat/completions", CHAT | {"prompt_cache_key": "k"}, HEADER, b"s1"),
        ("chat/completions", CHAT, {}, b""),
        ("completions", COMPLETION | {"prompt_cache_key": 7}, {}, b""),
        ("completions", COMPLETION, HEADER, b"s1"),
        ("responses", RESPONSE | {"prompt_cache_key": "k"}, {}, b"k"),
    ],
)
def test_the_session_of_a_request(service, monkeypatch, path, body, headers, session):
    sessions, submit = [], service.link.submit
    monkeypatch.setattr(
        service.link,
        "submit",
        lambda request, sink, session, _: (sessions.append(session), submit(request, sink)),
    )
    answer = service.http.post(f"/v1/{path}", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert sessions == [session]
