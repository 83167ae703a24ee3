"""Chat streams that clients come back to."""

from __future__ import annotations

import asyncio
import gc
import json

import httpx
import pytest
from streams_support import CHAT, HI, RESUME, begin, follow, go_on, logs, number, read, steps

from firelane.gateway.streams.kept_exchange import KeptExchange


def test_events_are_numbered_and_the_answer_has_an_id(service):
    with begin(service) as reader:
        whole = reader.rest()
    events = [event + b"\n\n" for event in whole.split(b"\n\n")[:-1]]
    assert [number(event) for event in events] == list(range(len(events)))
    chunks = [json.loads(event.partition(b"data: ")[2]) for event in events[:-1]]
    assert {chunk["id"] for chunk in chunks} == {reader.id}
    assert events[-1].endswith(b"data: [DONE]\n\n")
    text = "".join(choice["delta"].get("content", "") for c in chunks for choice in c["choices"])
    assert text == "hello world"


def test_it_is_read_again_from_every_place(service):
    with begin(service) as reader:
        whole = reader.rest()
    assert read(service, reader.id).content == whole
    events = [event + b"\n\n" for event in whole.split(b"\n\n")[:-1]]
    for last in range(len(events)):
        rest = b"".join(events[last + 1 :])
        assert read(service, reader.id, starting_after=last).content == rest
        by_header = service.http.get(f"{CHAT}/{reader.id}", headers={"last-event-id": str(last)})
        assert by_header.content == rest
        assert by_header.headers["content-type"].startswith("text/event-stream")


def test_the_engine_goes_on_while_the_client_is_away(held):
    with begin(held) as reader:
        steps(held, 3)
        seen = reader.take(2)
    held.wait_for(lambda: logs(held).readers == 0)
    steps(held, 5)
    with follow(held, reader.id, starting_after=1) as again:
        rest = again.take(4)
        go_on(held)
        rest.append(again.rest())
    assert held.engine.aborted == []
    whole = read(held, reader.id).content
    assert b"".join([*seen, *rest]) == whole
    assert whole.endswith(b"data: [DONE]\n\n")


def test_what_has_ended_holds_nothing_but_its_events(service):
    with begin(service) as reader:
        reader.rest()
    (log,) = logs(service)._places
    service.wait_for(lambda: not log.readers)
    assert not service.gateway.services.streams._running
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, KeptExchange) and one._log is log]


def test_several_read_at_once(held):
    with begin(held) as first:
        steps(held, 2)
        first.take(1)
        with follow(held, first.id) as second, follow(held, first.id, starting_after=1) as third:
            assert logs(held).readers == 3
            go_on(held)
            whole, rest = second.rest(), third.rest()
        assert first.rest() != b""
    assert whole.endswith(rest)
    assert number(rest) == 2


@pytest.mark.parametrize("answer", ["true", "0"])
def test_without_a_reader_it_ends_in_time(held, answer):
    held.gateway.services.streams._limits = held.config.streams.__class__(away_s=0.001)
    with begin(held, **{"x-stream-resume": answer}) as reader:
        steps(held, 2)
        reader.take(2)
    held.wait_for(lambda: not held.gateway.in_flight)
    assert len(held.engine.aborted) == 1
    events = read(held, reader.id).content.split(b"\n\n")
    error = json.loads(events[-2].partition(b"data: ")[2])["error"]
    assert error["code"] == "client_gone"
    assert number(events[-2]) == len(events) - 2


def test_a_reader_that_comes_back_stops_the_clock(held):
    with begin(held, **{"x-stream-resume": "600"}) as reader:
        steps(held, 2)
        reader.take(2)
    held.wait_for(lambda: logs(held).readers == 0)
    (work,) = held.gateway.services.streams._running.values()
    assert work._alone is not None
    with follow(held, reader.id) as again:
        again.take(1)
        assert work._alone is None
        go_on(held)
        assert again.rest().endswith(b"[DONE]\n\n")
    assert not held.gateway.services.streams._running


@pytest.mark.parametrize("headers", [{}, {"x-stream-resume": "false"}])
def test_without_the_header_nothing_is_new(service, headers):
    answer = service.http.post(CHAT, json=HI, headers=headers)
    assert b"id: " not in answer.content
    assert "x-stream-id" not in answer.headers
    assert len(logs(service)) == 0


def test_an_answer_in_one_piece_takes_the_header_and_keeps_nothing(service):
    answer = service.http.post(CHAT, json={**HI, "stream": False}, headers=RESUME)
    assert answer.json()["choices"][0]["message"]["content"] == "hello world"
    assert len(logs(service)) == 0


def test_a_client_that_goes_before_it_knows_the_id_ends_it(held, raw):
    release = held.call(held_tokenizer(held))
    client = raw()
    body = json.dumps(HI).encode()
    head = b"POST %b HTTP/1.1\r\nhost: localhost\r\nx-stream-resume: 600\r\ncontent-length: %d\r\n\r\n"
    client.send(head % (CHAT.encode(), len(body)) + body)
    held.wait_for(lambda: len(logs(held)) == 1)
    client.sock.close()
    held.wait_for(lambda: not len(held.gateway._connections))
    held.run(release)
    held.wait_for(lambda: len(logs(held)) == 0)
    assert held.engine.submitted == []
    assert held.gateway.in_flight == 0


async def held_tokenizer(service):
    """Conversations wait to be put into tokens until the function is called that this gives."""
    assistant = service.model.assistant
    go, encode = asyncio.Event(), assistant.encode

    async def encode_later(*given):
        await go.wait()
        return await encode(*given)

    assistant.encode = encode_later
    return go.set


def test_what_is_wrong_is_a_status_and_nothing_is_kept(service):
    refused = service.http.post(
        CHAT, json={"stream": True, "messages": [{"role": "user", "content": "x" * 5000}]}, headers=RESUME
    )
    assert refused.status_code == 400
    assert "x-stream-id" not in refused.headers
    assert len(logs(service)) == 0


def test_a_failure_of_the_engine_is_an_event_that_is_kept(held):
    with begin(held) as reader:
        steps(held, 2)
        reader.take(2)
    held.run(held.engine.die)
    held.wait_for(lambda: not held.gateway.in_flight)
    last = read(held, reader.id).content.split(b"\n\n")[-2]
    assert json.loads(last.partition(b"data: ")[2])["error"]["code"] == "engine_unavailable"


def test_a_second_answer_is_another_stream(service):
    service.text = "one"
    with begin(service) as one:
        first = one.rest()
    service.text = "two"
    with begin(service) as two:
        second = two.rest()
    assert one.id != two.id
    assert read(service, one.id).content == first
    assert read(service, two.id).content == second


def test_a_head_has_no_events(service):
    with begin(service) as reader:
        whole = reader.rest()
    with httpx.Client(base_url=service.url, trust_env=False) as client:
        for _ in range(3):  # one connection: a byte too much would spoil the next answer
            head = client.head(f"{CHAT}/{reader.id}?stream=true")
            assert (head.status_code, head.headers["x-stream-id"]) == (200, reader.id)
            assert client.get(f"{CHAT}/{reader.id}?stream=true").content == whole


def test_deleting_ends_it(held):
    with begin(held) as reader:
        steps(held, 2)
        reader.take(2)
        gone = held.http.delete(f"{CHAT}/{reader.id}")
        assert gone.json()["deleted"] is True
        last = reader.rest()
    assert b"stream_deleted" in last
    assert len(held.engine.aborted) == 1
    assert read(held, reader.id).status_code == 404
    assert held.http.delete(f"{CHAT}/{reader.id}").status_code == 404
    assert len(logs(held)) == 0


def test_nobody_reads_anothers(service):
    with begin(service, authorization="Bearer mine") as reader:
        reader.rest()
    mine = read(service, reader.id, headers={"authorization": "Bearer mine"})
    assert mine.status_code == 200
    theirs = read(service, reader.id, headers={"authorization": "Bearer theirs"})
    never = read(service, "chatcmpl-none", headers={"authorization": "Bearer theirs"})
    assert (theirs.status_code, never.status_code) == (404, 404)
    assert theirs.text.replace(reader.id, "X") == never.text.replace("chatcmpl-none", "X")
    assert (
        service.http.delete(f"{CHAT}/{reader.id}", headers={"authorization": "Bearer theirs"}).status_code
        == 404
    )


@pytest.mark.parametrize("given", ["maybe", "-1", "601", "1.5", "9" * 30, "true, true", "", "٣"])
def test_wrong_headers(service, given):
    answer = service.http.post(CHAT, json=HI, headers=[(b"x-stream-resume", given.encode())])
    assert answer.status_code == 400
    assert "use true, false, or 0 to 600 seconds" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=true&starting_after=99999999999", "starting_after"),
        ("stream=true&starting_after=x", "starting_after"),
        ("stream=true&starting_after=4000", "there is no event 4000 yet"),
        ("stream=maybe", "stream"),
        ("strem=true", "unknown query field"),
        ("starting_after=1", "is for `stream=true`"),
    ],
)
def test_wrong_queries(service, query, message):
    with begin(service) as reader:
        reader.rest()
    answer = service.http.get(f"{CHAT}/{reader.id}?{query}")
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize("last", ["-1", "x", "9" * 40, "1 2", "1, 2", "4000"])
def test_wrong_last_event_ids(service, last):
    with begin(service) as reader:
        reader.rest()
    answer = service.http.get(f"{CHAT}/{reader.id}", headers={"last-event-id": last})
    assert answer.status_code == 400


def test_a_newer_header_wins_over_the_query(service):
    with begin(service) as reader:
        whole = reader.rest()
    rest = read(service, reader.id, starting_after=0, headers={"last-event-id": "2"}).content
    assert number(rest) == 3
    assert whole.endswith(rest)
