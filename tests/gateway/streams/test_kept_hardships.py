"""Kept streams in hard times: engines that die, readers that do not read, thousands of streams."""

from __future__ import annotations

import json
import socket

import pytest
from streams_support import CHAT, HI, RESUME, begin, follow, go_on, logs, number, read, steps

from firelane.engine_state import LinkState
from firelane.gateway.config import HttpLimits, StreamLimits
from firelane.gateway.engines.recovery.recovery import Resume
from firelane.gateway.streams.event_log import PIECE_BYTES


def test_an_engine_that_dies_under_it_changes_nothing(make_service):
    service = make_service(recovery=Resume())
    service.text = "a stream that has some tokens to read"
    with begin(service) as reader:
        untouched = reader.rest()
    service.run(setattr, service.engine, "held", True)
    with begin(service) as reader:
        steps(service, 4)
        seen = reader.take(3)
    service.run(service.engine.die)
    service.wait_for(lambda: service.link.state is LinkState.DEAD)
    with follow(service, reader.id, starting_after=2) as again:
        service.run(setattr, service.engine, "held", False)
        service.call(service.restart())
        whole = b"".join(seen) + again.rest()
    assert service.link.figures.resumed == 1

    def texts(events: bytes) -> list[object]:
        found = [event.partition(b"data: ")[2] for event in events.split(b"\n\n")[:-2]]
        return [json.loads(one)["choices"] for one in found]

    assert texts(whole) == texts(untouched)
    assert whole.endswith(b"data: [DONE]\n\n")


def test_one_that_does_not_read_holds_a_piece_in_memory(make_service):
    """A reader that reads nothing has a bounded part of a long stream in its connection's buffer."""
    service = make_service(limits=HttpLimits(body_bytes=100_000, buffer_bytes=PIECE_BYTES))
    service.text = "x" * 200
    service.engine.max_model_len = 1 << 20
    service.call(service.restart())
    body = {**HI, "max_tokens": 8000, "ignore_eos": True, "n": 8}
    with begin(service, body=body, **{"x-stream-resume": "600"}) as reader:
        reader.take(1)
    service.wait_for(lambda: not service.gateway.in_flight)
    log = logs(service).get(service.gateway.services.tenants.identify({}), reader.id)
    assert log.size_bytes > 200 * PIECE_BYTES  # more than the sockets of both sides take

    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", service.gateway.port))
        client.sendall(
            b"GET %b/%b?stream=true HTTP/1.1\r\nhost: localhost\r\n\r\n" % (CHAT.encode(), reader.id.encode())
        )
        service.wait_for(lambda: service.gateway._connections.unsent_bytes > 0)
        assert service.gateway._connections.unsent_bytes <= 3 * PIECE_BYTES
        assert log.readers == 1
    service.wait_for(lambda: not log.readers)
    assert number(read(service, reader.id).content) == 0


def test_thousands_of_streams_stay_within_the_bound(make_service):
    bound = 1 << 20
    service = make_service(streams=StreamLimits(tenant_bytes=bound))
    made = []
    for _ in range(2000):
        with begin(service) as reader:
            reader.rest()
        made.append(reader.id)
    held = logs(service)
    held.check_integrity()
    assert held.bytes_held <= bound
    assert read(service, made[0]).status_code == 404
    assert read(service, made[-1]).status_code == 200
    missing = {read(service, f"chatcmpl-{number:024x}").status_code for number in range(500)}
    assert missing == {404}


def test_one_too_many_is_told_to_wait(make_service):
    service = make_service(streams=StreamLimits(tenant_bytes=2 * PIECE_BYTES))
    service.run(setattr, service.engine, "held", True)
    with begin(service) as first, begin(service):
        refused = service.http.post(CHAT, json=HI, headers=RESUME)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert "no memory for one more" in refused.json()["error"]["message"]
        service.http.delete(f"{CHAT}/{first.id}")
        with begin(service) as third:
            go_on(service)
            assert third.rest().endswith(b"[DONE]\n\n")
    service.wait_for(lambda: not service.gateway.in_flight)
    assert service.http.post(CHAT, json=HI).status_code == 200
    logs(service).check_integrity()


def test_one_whose_time_is_over_is_not_found(make_service):
    service = make_service(streams=StreamLimits(keep_s=0.001))
    with begin(service) as reader:
        reader.rest()

    def gone() -> bool:
        logs(service).sweep()
        return not len(logs(service))

    service.wait_for(gone)
    answer = read(service, reader.id)
    assert answer.status_code == 404
    assert "has ended more than 0.001 s ago" in answer.json()["error"]["message"]


def test_a_server_that_stops_lets_readers_have_the_rest(held):
    with begin(held) as reader:
        steps(held, 2)
        with follow(held, reader.id) as second:
            go_on(held)
            assert held.call(held.gateway.drain(60.0))
            assert second.rest().endswith(b"[DONE]\n\n")
        assert reader.rest().endswith(b"[DONE]\n\n")


def test_a_server_that_stops_waits_for_one_without_a_reader(held):
    with begin(held, **{"x-stream-resume": "600"}) as reader:
        steps(held, 2)
        reader.take(1)
    held.wait_for(lambda: not logs(held).readers)
    go_on(held)
    assert held.call(held.gateway.drain(60.0))
    assert held.engine.aborted == []


@pytest.mark.parametrize("ask", ["GET", "DELETE"])
@pytest.mark.parametrize(
    "name", ["x", "%00", "chatcmpl-%0d%0ax-a:%20b", "chatcmpl-" + "9" * 4000, "chatcmpl-..", "chatcmpl-é"]
)
def test_odd_ids(service, name, ask):
    answer = service.http.request(ask, f"{CHAT}/{name}?stream=true" if ask == "GET" else f"{CHAT}/{name}")
    assert answer.status_code == 404
    assert "x-a" not in answer.headers
    assert len(answer.content) < 1000


def test_metrics_tell_of_them(service):
    with begin(service) as reader:
        reader.rest()
    text = service.http.get("/metrics").text
    assert "firelane:kept_streams 1.0" in text
    assert "firelane:kept_stream_bytes 0.0" not in text
