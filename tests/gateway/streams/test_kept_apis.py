"""Kept streams of each API: bytes, errors, and whose they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from streams_support import CHAT, RESUME, begin, follow, go_on, logs, number, read, steps

MESSAGES = [{"role": "user", "content": "hi"}]
APIS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}},
    "/v1/completions": {"prompt": "hi", "max_tokens": 60, "stream": True, "n": 2},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 60, "stream": True},
}
LAST = {CHAT: b"data: [DONE]\n\n", "/v1/completions": b"data: [DONE]\n\n"}
PREFIX = {CHAT: "chatcmpl-", "/v1/completions": "cmpl-", "/v1/messages": "msg_"}
paths = pytest.mark.parametrize("path", list(APIS))


def split(whole: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in whole.split(b"\n\n")[:-1]]


def without_numbers(whole: bytes) -> bytes:
    return b"".join(event.partition(b"\n")[2] for event in split(whole))


@paths
def test_the_events_are_those_of_a_plain_stream(service, path):
    body = {**APIS[path], "seed": 1}
    plain = service.http.post(path, json=body)
    with begin(service, path, body) as reader:
        kept = without_numbers(reader.rest())
    assert reader.id.startswith(PREFIX[path])

    def shape(whole: bytes) -> list[Any]:
        found = [one.rpartition(b"data: ")[2] for one in split(whole)]
        return [
            {**json.loads(one), "id": 0, "created": 0, "message": 0} if one.startswith(b"{") else one
            for one in found
        ]

    assert shape(kept) == shape(plain.content)
    assert [one.partition(b"data")[0] for one in split(kept)] == [
        one.partition(b"data")[0] for one in split(plain.content)
    ]


@paths
def test_any_place_joins_to_the_whole(service, path):
    with begin(service, path, APIS[path]) as reader:
        whole = reader.rest()
    events = split(whole)
    assert [number(event) for event in events] == list(range(len(events)))
    assert read(service, reader.id, path).content == whole
    for last in range(len(events)):
        rest = read(service, reader.id, path, starting_after=last).content
        assert b"".join(events[: last + 1]) + rest == whole


@paths
def test_clients_that_leave_at_every_step(held, path):
    """The engine makes a token, the reader takes what there is and goes; whoever comes next reads on."""
    got: list[bytes] = []
    with begin(held, path, APIS[path], **{"x-stream-resume": "600"}) as reader:
        steps(held, 1)
        got += reader.take(1)
    for _ in range(12):
        steps(held, 1)
        with follow(held, reader.id, path, starting_after=number(got[-1])) as again:
            got += again.take(1)
    go_on(held)
    got.append(read(held, reader.id, path, starting_after=number(got[-1])).content)
    assert b"".join(got) == read(held, reader.id, path).content
    assert held.engine.aborted == []


@paths
def test_one_that_was_left_ends_with_an_error_of_its_api(held, path):
    with begin(held, path, APIS[path], **{"x-stream-resume": "0"}) as reader:
        steps(held, 2)
        reader.take(1)
    held.wait_for(lambda: not held.gateway.in_flight)
    events = split(read(held, reader.id, path).content)
    error = json.loads(events[-1].partition(b"data: ")[2])
    assert "nobody read the stream" in error["error"]["message"]
    assert (b"event: error\n" in events[-1]) == (path == "/v1/messages")
    assert len(held.engine.aborted) == len(held.engine.submitted)


@paths
def test_deletes_while_several_read(held, path):
    with (
        begin(held, path, APIS[path]) as first,
        follow(held, first.id, path) as second,
        follow(held, first.id, path, starting_after=None) as third,
    ):
        steps(held, 2)
        second.take(1)
        assert held.http.delete(f"{path}/{first.id}").json()["deleted"] is True
        for reader in (first, second, third):
            assert b"was deleted while it was made" in reader.rest()
    assert read(held, first.id, path).status_code == 404
    assert held.gateway.in_flight == 0
    assert len(logs(held)) == 0


@paths
def test_another_api_s_and_another_key_s_are_not_found(service, path):
    with begin(service, path, APIS[path], authorization="Bearer a") as reader:
        reader.rest()
    for other in APIS:
        key = "Bearer b" if other == path else "Bearer a"
        for method, query in (("GET", "?stream=true"), ("GET", ""), ("DELETE", "")):
            url = f"{other}/{reader.id}{query}"
            answer = service.http.request(method, url, headers={"authorization": key})
            refused = 404 if query or other == CHAT or method == "DELETE" else 400
            assert answer.status_code == refused
    assert read(service, reader.id, path, headers={"authorization": "Bearer a"}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages"])
def test_only_the_stream_can_be_read(service, path):
    with begin(service, path, APIS[path]) as reader:
        reader.rest()
    answer = service.http.get(f"{path}/{reader.id}")
    assert answer.status_code == 400
    assert "stream=true" in answer.json()["error"]["message"]


@paths
def test_a_server_that_keeps_none_says_so(make_service, path):
    from firelane.gateway.config import StreamLimits

    service = make_service(streams=StreamLimits(tenant_bytes=0))
    refused = service.http.post(path, json=APIS[path], headers=RESUME)
    assert refused.status_code == 400
    assert "tenant_streams_mib = 0" in refused.json()["error"]["message"]
    assert service.http.post(path, json=APIS[path]).status_code == 200
    if path == CHAT:
        stored = service.http.post(path, json={**APIS[path], "store": True})
        assert (stored.status_code, b"id: " in stored.content) == (200, False)


@paths
def test_a_reader_of_what_is_forgotten_is_told(make_service, path):
    from firelane.gateway.config import StreamLimits

    service = make_service(streams=StreamLimits(tenant_bytes=4096))
    service.text = "x" * 100
    body = {**APIS[path], "max_tokens": 90, "n": None}
    if path == "/v1/messages":
        del body["n"]
    with begin(service, path, body) as reader:
        rest = reader.rest()
    first = logs(service).get(service.gateway.services.tenants.identify({}), reader.id).first
    assert first > 0
    early = read(service, reader.id, path, starting_after=0)
    assert early.status_code == 404
    assert f"from number {first} on" in early.json()["error"]["message"]
    late = read(service, reader.id, path, starting_after=first - 1).content
    assert rest.endswith(late)
    assert number(late) == first
    assert logs(service).bytes_held <= 4096
