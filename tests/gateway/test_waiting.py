"""Requests that come while the model loads: they wait for it where the server is told so."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable

import httpx
import pytest
from service import Service

from firelane.engine_state import LinkState
from firelane.wire.frames import Failed, Progress

ASKED = [
    ("/v1/completions", {"prompt": "say"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "say"}]}),
    ("/v1/responses", {"input": "say"}),
    ("/v1/messages", {"model": "toy", "max_tokens": 5, "messages": [{"role": "user", "content": "say"}]}),
    ("/client/v4/accounts/a/ai/run/toy", {"prompt": "say"}),
]


class Asked:
    """A request on a thread of its own."""

    def __init__(self, service: Service, path: str, body: dict[str, object]) -> None:
        self._answers: list[httpx.Response] = []
        self._thread = threading.Thread(
            target=lambda: self._answers.append(service.http.post(path, json=body))
        )
        self._thread.start()

    @property
    def answer(self) -> httpx.Response:
        self._thread.join()
        return self._answers[0]


def load_again(service: Service) -> None:
    service.run(service.engine.die)
    sock = service.run(service.engine.connect)
    service.call(service.replica.attach(sock))
    service.wait_for(lambda: service.link.state is LinkState.STARTING)


def waiting(service: Service) -> Callable[[], bool]:
    return lambda: service.model.admission.held == 1


@pytest.fixture
def loading(make_service) -> Service:
    service = make_service(wait=True, max_queue=1)
    load_again(service)
    return service


@pytest.mark.parametrize(("path", "body"), ASKED, ids=lambda value: value if isinstance(value, str) else "")
def test_a_request_waits_for_the_model(loading: Service, path: str, body: dict[str, object]) -> None:
    asked = Asked(loading, path, body)
    loading.wait_for(waiting(loading))
    loading.run(loading.engine.send, loading.engine.ready())
    assert asked.answer.status_code == 200, asked.answer.text
    loading.wait_for(lambda: loading.model.admission.held == 0)


def test_no_more_wait_than_the_queue_has_room_for(loading: Service) -> None:
    first = Asked(loading, *ASKED[0])
    loading.wait_for(waiting(loading))
    assert loading.http.post(ASKED[0][0], json=ASKED[0][1]).status_code == 429
    loading.run(loading.engine.send, loading.engine.ready())
    assert first.answer.status_code == 200


def test_a_model_that_does_not_come_fails_those_that_wait(loading: Service) -> None:
    asked = Asked(loading, *ASKED[0])
    loading.wait_for(waiting(loading))
    loading.run(loading.engine.send, Failed("no compiler: install g++", 1))
    loading.run(loading.engine.die)
    assert asked.answer.status_code == 503
    assert "install g++" in asked.answer.json()["error"]["message"]


def test_a_client_that_goes_gives_its_place_back(loading: Service) -> None:
    with socket.create_connection(("127.0.0.1", loading.gateway.port)) as client:
        client.sendall(
            b'POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 14\r\n\r\n{"prompt":"a"}'
        )
        loading.wait_for(waiting(loading))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    loading.wait_for(lambda: loading.model.admission.held == 0)


def test_a_server_that_ends_lets_nobody_wait(loading: Service) -> None:
    asked = Asked(loading, *ASKED[0])
    loading.wait_for(waiting(loading))
    loading.call(loading.gateway.drain(5.0))
    assert asked.answer.status_code == 503


def test_it_waits_no_longer_than_any_request(make_service) -> None:
    service = make_service(wait=True, max_queue_age_s=0.01)
    load_again(service)
    answer = service.http.post(ASKED[0][0], json=ASKED[0][1])
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")


def test_it_waits_no_longer_than_its_own_deadline(make_service) -> None:
    service = make_service(wait=True)
    load_again(service)
    answer = service.http.post(ASKED[0][0], json=ASKED[0][1], headers={"x-request-deadline-ms": "20"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "deadline_unreachable")
    assert service.model.admission.held == 0


def test_retry_after_tells_the_time_that_is_left(make_service) -> None:
    service = make_service()
    load_again(service)
    service.run(service.engine.send, Progress("compile", 0, 1, "unit"))
    service.wait_for(lambda: service.replica.engine.progress is not None)
    health, asked = service.http.get("/health"), service.http.post(ASKED[0][0], json=ASKED[0][1])
    assert (health.status_code, health.json()["status"]) == (503, "loading")
    assert (asked.status_code, asked.json()["error"]["code"]) == (503, "engine_unavailable")
    assert {health.headers["retry-after"], asked.headers["retry-after"]} == {"5"}
