"""Requests for a model that is not in memory: they wait, stream signs of life, or are refused."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import Iterator

import pytest
from service import Service

from firelane.engine_state import LinkState
from firelane.errors import EngineDeadError
from firelane.gateway.apis.ollama.models import NEVER
from firelane.gateway.requests import residence as residence_module
from firelane.gateway.requests.control import FixedModels

BODY = {"prompt": "say", "max_tokens": 20}
HEADER = {"x-firelane-reject-if-cold": "true"}


class Residence:
    """The residence of a model that comes when the test says so."""

    state, reason, left_s, deadline_s, leaves = "standby", "", 7, 60.0, True

    def __init__(self) -> None:
        self.is_cold = True
        self.asked = threading.Event()
        self.kept: list[float | None] = []
        self.failure: EngineDeadError | None = None
        self._ready = asyncio.Event()

    def used(self, keep_s: float | None) -> None:
        self.kept.append(keep_s)

    async def changed(self) -> None:
        pass

    async def want(self) -> None:
        self.asked.set()
        await self._ready.wait()
        if self.failure is not None:
            raise self.failure

    def come(self) -> None:
        self.is_cold = False
        self._ready.set()

    def fail(self, error: EngineDeadError) -> None:
        self.failure = error
        self._ready.set()


@pytest.fixture
def cold(service: Service) -> Iterator[Residence]:
    residence = service.run(Residence)
    service.model.residence = residence
    yield residence
    service.run(residence.come)


@pytest.mark.usefixtures("cold")
def test_a_model_that_may_leave_does_not_make_the_server_unhealthy(service: Service) -> None:
    service.run(service.engine.die)
    service.wait_for(lambda: service.link.state is LinkState.DEAD)
    assert service.http.get("/health").status_code == 200
    assert service.http.get(f"/health?model={service.model.name}").status_code == 503


def later(service: Service, cold: Residence, *step: object) -> threading.Thread:
    """Do something once the request waits."""

    def work() -> None:
        assert cold.asked.wait(60)
        service.run(*step)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_request_waits_for_its_model_in_the_queue(service, cold) -> None:
    admission = service.model.admission
    seen: list[tuple[int, int, bool]] = []

    def come() -> None:
        seen.append((admission.held, admission.early_held, admission.is_busy))
        cold.come()

    thread = later(service, cold, come)
    answer = service.http.post("/v1/completions", json=BODY)
    thread.join()
    assert answer.json()["choices"][0]["text"] == "hello world"
    assert seen == [(1, 1, False)]
    assert cold.kept == [None]
    assert (admission.held, admission.early_held) == (0, 0)


COLD_S = 0.2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", BODY),
        ("/api/chat", {"model": "toy", "stream": True, "messages": [{"role": "user", "content": "a"}]}),
    ],
)
def test_figures_of_a_request_hold_its_wait_for_the_model(service, cold, caplog, path, body) -> None:
    """In the log, in the metrics, and in what Ollama's clients are told."""
    caplog.set_level(logging.INFO, "firelane")

    def come() -> None:
        asyncio.get_running_loop().call_later(COLD_S, cold.come)

    thread = later(service, cold, come)
    answer = service.http.post(path, json=body)
    thread.join()
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("request_ended")]
    ttft_ms, total_ms = (float(line.split(f"{name}=")[1].split()[0]) for name in ("ttft_ms", "total_ms"))
    assert total_ms >= ttft_ms >= COLD_S * 1000
    for name in ("time_to_first_token", "e2e_request_latency"):
        found = re.search(rf"vllm:{name}_seconds_sum{{[^}}]*}} (\S+)", service.http.get("/metrics").text)
        assert found is not None
        assert float(found[1]) >= COLD_S
    if path.startswith("/api/"):
        assert json.loads(answer.text.splitlines()[-1])["load_duration"] >= COLD_S * 1e9


def test_who_does_not_wait_is_told_when_to_come_again(service, cold) -> None:
    answer = service.http.post("/v1/completions", json=BODY, headers=HEADER)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    assert "is not in memory (standby)" in answer.json()["error"]["message"]
    assert not cold.asked.is_set()
    service.run(cold.come)
    assert service.http.post("/v1/completions", json=BODY, headers=HEADER).status_code == 200


def test_a_model_that_does_not_come_is_told_with_its_reason(service, cold) -> None:
    thread = later(service, cold, cold.fail, EngineDeadError("no memory", retry_after_s=9))
    answer = service.http.post("/v1/completions", json=BODY)
    thread.join()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "9")
    assert answer.json()["error"]["message"] == "no memory"


def test_a_request_does_not_wait_for_ever(service, cold) -> None:
    cold.deadline_s = 0.01
    answer = service.http.post("/v1/completions", json=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residence_module, "SIGN_S", 0.001)


def lines_of(service: Service, path: str, body: dict, step) -> list[str]:
    """Lines of a stream, during which `step` happens after the first of them."""
    found: list[str] = []
    with service.http.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if not found:
                service.run(step)
            found.append(line)
    return found


@pytest.mark.usefixtures("eager")
def test_a_stream_shows_that_it_waits(service, cold) -> None:
    lines = lines_of(service, "/v1/completions", BODY, cold.come)
    assert lines[0] == ": waiting: toy: standby"
    events = [line for line in lines if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert "".join(json.loads(e[6:])["choices"][0]["text"] for e in events[:-1]) == "hello world"


@pytest.mark.usefixtures("eager")
def test_what_goes_wrong_after_a_sign_is_an_event(service, cold) -> None:
    lines = lines_of(service, "/v1/completions", BODY, lambda: cold.fail(EngineDeadError("no memory")))
    (event,) = [line for line in lines if line.startswith("data: ")]
    assert '"message":"no memory"' in event


STREAMS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 20},
    "/v1/responses": {"input": "a"},
    "/client/v4/accounts/a/ai/run/toy": {"prompt": "a"},
    "/client/v4/accounts/a/ai/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
}


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("path", STREAMS)
def test_streams_of_each_api_show_that_they_wait(service, cold, path: str) -> None:
    body = {**STREAMS[path], **({} if "/run/" in path else {"model": "toy"})}
    lines = lines_of(service, path, body, cold.come)
    assert lines[0] == ": waiting: toy: standby"
    assert len([line for line in lines if line.startswith("data: ")]) > 2
    assert "event: error" not in lines


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("path", [path for path in STREAMS if "messages" not in path])
def test_what_goes_wrong_is_told_in_each(service, cold, path: str) -> None:
    body = {**STREAMS[path], **({} if "/run/" in path else {"model": "toy"})}
    lines = lines_of(service, path, body, lambda: cold.fail(EngineDeadError("no memory")))
    (event,) = [line for line in lines if line.startswith("data: ")]
    assert "no memory" in event


@pytest.mark.usefixtures("eager")
def test_such_an_event_is_in_the_form_of_its_api(service, cold) -> None:
    body = {"model": service.model.name, "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]}
    lines = lines_of(service, "/v1/messages", body, lambda: cold.fail(EngineDeadError("no memory")))
    at = lines.index("event: error")
    assert '"overloaded_error","message":"no memory"' in lines[at + 1]


def test_keep_alive_says_how_long_the_model_stays(service, cold) -> None:
    service.run(cold.come)
    for value, seconds in (("5m", 300.0), (0, 0.0), ("-1", -1.0), ("1h30m", 5400.0), (2.5, 2.5)):
        body = {"model": service.model.name, "prompt": "a", "keep_alive": value, "stream": False}
        assert service.http.post("/api/generate", json=body).status_code == 200
        assert cold.kept[-1] == seconds
    body["keep_alive"] = "soon"
    assert service.http.post("/api/generate", json=body).status_code == 400


@pytest.mark.parametrize("keep_s", [1e12, 1e25, float("inf")])
def test_a_model_that_is_kept_for_ages_leaves_never(service, cold, monkeypatch, keep_s) -> None:
    service.run(cold.come)
    monkeypatch.setattr(FixedModels, "keep_s", lambda *_: keep_s)
    (running, *_) = service.http.get("/api/ps").json()["models"]
    assert running["expires_at"] == NEVER


def test_an_empty_request_that_keeps_nothing_unloads(service, cold) -> None:
    body = {"model": service.model.name, "keep_alive": 0, "stream": False}
    assert service.http.post("/api/generate", json=body).json()["done_reason"] == "unload"
    assert cold.kept == [0.0]
    assert not cold.asked.is_set()


KEPT = {"x-stream-resume": "60"}


def test_signs_come_before_a_stream_that_is_kept(service, cold, monkeypatch) -> None:
    """They have no number; what comes after them has, and can be read again."""
    monkeypatch.setattr(residence_module, "SIGN_S", 0.001)
    with service.http.stream(
        "POST", "/v1/completions", json={**BODY, "stream": True}, headers=KEPT
    ) as answer:
        pieces = answer.iter_raw()
        first = next(pieces)
        assert first.startswith(b": waiting: ")
        service.run(cold.come)
        whole = first + b"".join(pieces)
    events = [event for event in whole.split(b"\n\n")[:-1] if not event.startswith(b":")]
    assert [event.partition(b"\n")[0] for event in events] == [b"id: %d" % n for n in range(len(events))]
    again = service.http.get(f"/v1/completions/{answer.headers['x-stream-id']}?stream=true")
    assert again.content == b"".join(event + b"\n\n" for event in events)


def test_a_model_that_does_not_come_ends_a_stream_that_is_kept(service, cold, monkeypatch) -> None:
    monkeypatch.setattr(residence_module, "SIGN_S", 0.001)
    with service.http.stream(
        "POST", "/v1/completions", json={**BODY, "stream": True}, headers=KEPT
    ) as answer:
        pieces = answer.iter_raw()
        first = next(pieces)
        service.run(cold.fail, EngineDeadError("no memory for it"))
        whole = first + b"".join(pieces)
    assert "no memory for it" in whole.decode()
    stream_id = answer.headers["x-stream-id"]
    assert service.http.get(f"/v1/completions/{stream_id}?stream=true").status_code == 404
    assert len(service.gateway.services.streams.logs) == 0


@pytest.mark.usefixtures("cold")
def test_one_that_is_deleted_while_its_model_comes_is_not_made(service, monkeypatch) -> None:
    monkeypatch.setattr(residence_module, "SIGN_S", 0.001)
    with service.http.stream(
        "POST", "/v1/completions", json={**BODY, "stream": True}, headers=KEPT
    ) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        path = f"/v1/completions/{answer.headers['x-stream-id']}"
        assert service.http.delete(path).status_code == 200
        rest = b"".join(pieces)
    assert b"was deleted while it was made" in rest
    assert service.engine.submitted == []
    assert service.http.get(f"{path}?stream=true").status_code == 404
    assert not service.gateway.services.streams._running
