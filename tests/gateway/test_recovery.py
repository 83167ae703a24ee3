"""Requests that lose their engine: they go on with another one, and their clients see a pause at most."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from firelane.engine_state import LinkState
from firelane.gateway.engines.recovery import parked
from firelane.gateway.engines.recovery.recovery import Resume
from firelane.wire.frames import (
    PROTOCOL_VERSION,
    EngineStats,
    Finished,
    NewRequest,
    Sampling,
    StepFrame,
    TokenLogprobs,
)

TEXT = "the quick brown fox jumps over the lazy dog and runs away"


@pytest.fixture
def service(make_service):
    service = make_service(recovery=Resume())
    service.text = TEXT
    service.run(setattr, service.engine, "held", True)
    return service


def begin(service: Any, path: str, body: dict[str, Any], sequences: int = 1, steps: int = 5) -> Any:
    """Send a request, let it have some tokens, and return a function that gives its answer."""
    box: list[Any] = []

    def post() -> None:
        own = {"max_tokens": 60} if path == "/v1/completions" else {}
        box.append(service.http.post(path, json={**own, **body}))

    thread = threading.Thread(target=post)
    thread.start()
    service.wait_for(lambda: len(service.engine.running) == sequences)
    for _ in range(steps):
        service.run(service.engine.step)

    def answer() -> Any:
        thread.join()
        return box[0]

    return answer


def kill(service: Any) -> None:
    service.run(service.engine.die)
    service.wait_for(lambda: service.link.state is LinkState.DEAD)


def revive(service: Any, *, held: bool = False) -> None:
    service.run(setattr, service.engine, "held", held)
    service.call(service.restart())


def stable(answer: Any) -> Any:
    """An answer without what differs from one request to the next."""
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        data = [json.loads(e) for e in events if e != "[DONE]" and not e.startswith(":")]
        return [{**event, "id": "", "created": 0} for event in data]
    return {**answer.json(), "id": "", "created": 0}


BODIES = {
    "stream": {"stream": True},
    "whole": {},
    "logprobs": {"stream": True, "logprobs": 2},
    "prompt logprobs": {"prompt_logprobs": 1, "logprobs": 1},
    "echo with logprobs": {"echo": True, "logprobs": 1},
    "stop string": {"stream": True, "stop": ["jumps ov"]},
    "token ids": {"stream": True, "return_token_ids": True},
    "usage": {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "several": {"n": 3},
    "best of": {"n": 1, "best_of": 3},
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_an_answer_is_the_same_over_two_deaths(service, body):
    body = {"prompt": "say it", **body}
    sequences = body.get("best_of", body.get("n", 1))
    answer = begin(service, "/v1/completions", body, sequences)
    kill(service)
    revive(service, held=True)
    service.wait_for(lambda: len(service.engine.running) == sequences)
    for _ in range(7):
        service.run(service.engine.step)
    kill(service)
    revive(service)
    disturbed = stable(answer())
    assert disturbed == stable(service.http.post("/v1/completions", json={"max_tokens": 60, **body}))
    assert service.link.in_flight == 0
    assert service.gateway.in_flight == 0
    assert service.link.figures.resumed == 2 * sequences


def test_a_request_without_a_token_is_sent_again_as_it_was(service):
    answer = begin(service, "/v1/completions", {"prompt": "say"}, steps=0)
    kill(service)
    revive(service)
    assert answer().json()["choices"][0]["text"] == TEXT
    first, second = service.engine.submitted
    assert first == second


def test_the_continuation_says_where_the_output_begins(service):
    answer = begin(service, "/v1/completions", {"prompt": "say", "seed": 4}, steps=3)
    kill(service)
    revive(service)
    answer()
    first, second = service.engine.submitted
    assert second.output_start == len(first.prompt) // 4
    assert second.prompt[: len(first.prompt)] == first.prompt
    assert len(second.prompt) == len(first.prompt) + 12
    assert (second.id, second.sampling) == (first.id, first.sampling)


def test_embeddings_are_computed_again(service):
    answer = begin(service, "/v1/embeddings", {"input": ["ab", "c"]}, 2, steps=0)
    kill(service)
    revive(service)
    assert [len(item["embedding"]) for item in answer().json()["data"]] == [4, 4]


def test_requests_that_come_while_an_engine_starts_wait_for_it(service):
    kill(service)
    box: list[Any] = []
    thread = threading.Thread(
        target=lambda: box.append(service.http.post("/v1/completions", json={"prompt": "a"}))
    )
    thread.start()
    service.wait_for(lambda: len(service.link.dispatcher.parked) == 1)
    assert service.http.get("/health").status_code == 503
    revive(service)
    thread.join()
    assert box[0].status_code == 200


def test_before_the_first_engine_was_ready_nothing_waits(make_service):
    service = make_service(recovery=Resume())
    service.run(setattr, service.link.figures, "sizes", None)
    kill(service)
    assert service.http.post("/v1/completions", json={"prompt": "a"}).status_code == 503


def test_a_client_that_goes_while_its_request_is_parked(service):
    kill(service)
    sink = Heard()
    request = NewRequest(id=service.link.next_id(), prompt=b"\1\0\0\0", sampling=Sampling())
    service.run(service.link.submit, request, sink)
    assert len(service.link.dispatcher.parked) == 1
    service.run(service.link.abort, request.id)
    assert service.link.in_flight == 0
    revive(service)
    assert service.engine.submitted == []
    assert sink.calls == []


def test_comments_are_sent_while_a_stream_waits(service, monkeypatch):
    monkeypatch.setattr(parked, "TICK_S", 0.01)
    lines: list[str] = []
    seen = threading.Event()

    def read() -> None:
        body = {"prompt": "say", "stream": True, "max_tokens": 60}
        with service.http.stream("POST", "/v1/completions", json=body) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                if line == ": waiting":
                    seen.set()

    thread = threading.Thread(target=read)
    thread.start()
    service.wait_for(lambda: bool(service.engine.running))
    service.run(service.engine.step)
    kill(service)
    assert seen.wait(60)
    revive(service)
    thread.join()
    data = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in data) == TEXT


def test_a_request_that_waits_too_long_for_an_engine_fails(service, monkeypatch):
    monkeypatch.setattr(parked, "TICK_S", 0.01)
    service.run(setattr, service.link.dispatcher.parked, "parked_s", 0.02)
    answer = begin(service, "/v1/completions", {"prompt": "say"}, steps=2)
    kill(service)
    assert answer().status_code == 503
    assert "no engine was there" in answer().json()["error"]["message"]
    assert service.link.in_flight == 0


def test_a_request_without_an_engine_is_refused_when_its_time_is_over(service, monkeypatch):
    """One that has begun waits on: a part of its answer is out."""
    monkeypatch.setattr(parked, "TICK_S", 0.01)
    kill(service)
    body = {"prompt": "say", "deadline_ms": 40}
    refused = service.http.post("/v1/completions", json=body)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "deadline_unreachable"
    assert service.link.in_flight == 0


def test_a_request_that_has_begun_goes_on_though_its_time_is_over(service, monkeypatch):
    monkeypatch.setattr(parked, "TICK_S", 0.01)
    answer = begin(service, "/v1/completions", {"prompt": "say", "deadline_ms": 600_000}, steps=2)
    flight = next(iter(service.link.links[0].requests.delivery.flights.values()))
    flight.due_s = 0.0
    kill(service)
    revive(service)
    assert answer().status_code == 200
    assert answer().json()["choices"][0]["text"] == TEXT


def test_the_most_urgent_goes_first_when_an_engine_is_there_again(service):
    kill(service)
    urgencies = [(0, 0), (0, 60_000), (3, 50_000), (-1, 0), (0, 0), (0, 50_000)]
    for number, (priority, deadline_ms) in enumerate(urgencies):
        request = NewRequest(
            id=service.link.next_id(),
            prompt=b"\1\0\0\0",
            sampling=Sampling(seed=number),
            priority=priority,
            deadline_ms=deadline_ms,
        )
        service.run(service.link.submit, request, Heard())
    revive(service, held=True)
    service.wait_for(lambda: len(service.engine.submitted) == len(urgencies))
    assert [one.sampling.seed for one in service.engine.submitted] == [3, 5, 1, 0, 4, 2]


def test_a_request_that_kills_engines_fails_alone(service):
    """The poisonous one dies at the same place again; the other one gets on between the deaths, waits while
    the first one has an engine alone, and ends."""
    poison = begin(service, "/v1/completions", {"prompt": "bad"}, 1, steps=2)
    good = begin(service, "/v1/completions", {"prompt": "good"}, 2, steps=2)
    bad, *_ = service.engine.running
    kill(service)
    for alone in (False, False, True, True, True):
        revive(service, held=True)
        service.wait_for(lambda expected=1 if alone else 2: len(service.engine.running) == expected)
        assert bad in service.engine.running
        row = service.engine.running.pop(bad)
        for _ in range(6):
            service.run(service.engine.step)
        service.engine.running[bad] = row
        service.run(service.engine.step)  # the first token that the bad one gets since
        assert len(service.link.dispatcher.parked) == int(alone)
        kill(service)
    assert poison().status_code == 400
    assert "6 engines died" in poison().json()["error"]["message"]
    revive(service)
    assert good().json()["choices"][0]["text"] == TEXT


def test_among_several_suspects_each_goes_on_alone(service):
    answers = [begin(service, "/v1/completions", {"prompt": f"p{i}"}, i + 1, steps=1) for i in range(3)]
    bad = next(iter(service.engine.running))
    for _ in range(2):
        kill(service)
        revive(service, held=True)
        service.wait_for(lambda: bool(service.engine.running))
        service.run(service.engine.step)
    assert list(service.engine.running) == [bad]  # on trial
    for deaths in range(4):
        kill(service)
        if deaths < 3:
            revive(service, held=True)
            service.wait_for(lambda: list(service.engine.running) == [bad])  # alone
            assert len(service.link.dispatcher.parked) == 2
    assert "6 engines died" in answers[0]().json()["error"]["message"]
    revive(service, held=True)
    service.wait_for(lambda: len(service.engine.running) == 1)  # the next suspect
    for _ in range(6):
        service.run(service.engine.step)
    service.wait_for(lambda: len(service.engine.running) == 2)
    service.run(setattr, service.engine, "held", False)
    service.run(service.engine.step_on)
    assert [answer().json()["choices"][0]["text"] for answer in answers[1:]] == [TEXT, TEXT]


def test_one_that_was_accused_for_nothing_goes_on_and_so_do_those_that_waited_for_it(service):
    """Engines that other processes kill: on trial, and alone, but not at every try."""
    answers = [begin(service, "/v1/completions", {"prompt": f"p{i}"}, i + 1, steps=1) for i in range(3)]
    for _ in range(4):
        kill(service)
        revive(service, held=True)
        service.wait_for(lambda: bool(service.engine.running))
    assert len(service.engine.running) == 1
    late = begin(service, "/v1/completions", {"prompt": "new"}, 1, steps=0)  # waits, too
    service.wait_for(lambda: len(service.link.dispatcher.parked) == 3)
    service.run(setattr, service.engine, "held", False)
    service.run(service.engine.step_on)
    texts = [answer().json()["choices"][0]["text"] for answer in (*answers, late)]
    assert texts == [TEXT] * 4
    assert service.link.in_flight == 0


def test_an_engine_that_ends_gives_its_requests_back(service):
    """SIGTERM to an engine: it drains, and what it does not finish goes on elsewhere."""
    answer = begin(service, "/v1/completions", {"prompt": "say"}, steps=3)
    (running,) = service.engine.running
    service.engine.running.clear()
    ends = StepFrame(9, [], [], [], [Finished(running, "abort")], [], EngineStats())
    service.run(service.engine.send, ends)
    service.wait_for(lambda: len(service.link.dispatcher.parked) == 1)
    kill(service)
    revive(service)
    assert answer().json()["choices"][0]["text"] == TEXT


def test_an_engine_that_drains_takes_nothing_new(service):
    service.run(setattr, service.engine, "reject", "the engine is draining")
    service.run(setattr, service.engine, "elsewhere", True)
    sink = Heard()
    request = NewRequest(id=service.link.next_id(), prompt=b"\1\0\0\0", sampling=Sampling(max_tokens=2))
    submitted = len(service.engine.submitted)
    service.run(service.link.submit, request, sink)
    service.wait_for(lambda: len(service.link.dispatcher.parked) == 1)
    assert len(service.engine.submitted) == submitted + 1
    service.run(setattr, service.engine, "reject", "")
    kill(service)
    revive(service)
    service.wait_for(lambda: sink.calls[-1:] == ["on_end"])


def test_an_engine_of_another_model_does_not_go_on(service):
    answer = begin(service, "/v1/completions", {"prompt": "say"}, steps=3)
    kill(service)
    service.engine.ready = lambda **changes: type(service.engine).ready(
        service.engine, identity="new", **changes
    )
    service.run(setattr, service.link._observer, "_identity", "old")
    revive(service)
    assert "another model" in answer().json()["error"]["message"]
    assert service.http.post("/v1/completions", json={"prompt": "a"}).status_code == 200


def test_an_engine_of_another_protocol_is_refused(service):
    kill(service)
    service.call(service.replica.attach(service.run(service.engine.connect)))
    service.run(service.engine.send, service.engine.ready(protocol=PROTOCOL_VERSION + 1))
    service.wait_for(lambda: service.replica.engine.failed is not None)
    assert "protocol" in service.replica.engine.failed.message
    assert service.link.state is LinkState.DEAD


class Heard:
    """A sink that keeps what it is told."""

    def __init__(self):
        self.calls: list[str] = []
        self.tokens: list[int] = []

    def __getattr__(self, name):
        return lambda *_: self.calls.append(name)

    def on_tokens(self, tokens, _):
        self.calls.append("on_tokens")
        self.tokens += tokens


def test_several_tokens_in_one_frame(service):
    """Each comes behind its own log-probability, and `ending` before the last one."""
    sinks = [Heard(), Heard()]
    for sink in sinks:
        sampling = Sampling(max_tokens=9, logprobs=0, prompt_logprobs=0)
        request = NewRequest(id=service.link.next_id(), prompt=b"\1\0\0\0" * 2, sampling=sampling)
        service.run(service.link.submit, request, sink)
    service.wait_for(lambda: len(service.engine.running) == 2)
    one, two = service.engine.running
    entries = [TokenLogprobs(one, i, 7, -1.0, [], []) for i in (1, 2, 3)]
    frame = StepFrame(
        1, [one, two], [7, 8], [], [Finished(one, "length")], entries, EngineStats(), counts=[2, 0]
    )
    service.run(service.engine.send, frame)
    service.wait_for(lambda: "on_end" in sinks[0].calls)
    assert sinks[0].calls == [
        *("on_logprobs", "hold", "on_logprobs", "on_tokens", "on_logprobs", "ending", "on_tokens"),
        *("release", "on_end"),
    ]
    assert (sinks[0].tokens, sinks[1].calls) == ([7, 8], [])
