"""Priority and deadline of a request: fields, header, errors, and what the engine is told."""

from __future__ import annotations

import math
import threading
import time
from types import SimpleNamespace

import openai
import pytest

from firelane.engine_state import LinkState
from firelane.errors import DeadlineError
from firelane.gateway.engines.recovery.recovery import Resume
from firelane.gateway.urgency import note_urgency

USER = [{"role": "user", "content": "hi"}]
PATHS = {
    "/v1/chat/completions": {"messages": USER, "max_tokens": 5},
    "/v1/completions": {"prompt": "say", "max_tokens": 5},
    "/v1/messages": {"messages": USER, "max_tokens": 5},
    "/v1/responses": {"input": "hi", "max_output_tokens": 5},
    "/api/chat": {"model": "toy", "messages": USER, "stream": False, "options": {"num_predict": 5}},
    "/api/generate": {"model": "toy", "prompt": "hi", "stream": False, "options": {"num_predict": 5}},
}
ALL = pytest.mark.parametrize("path", PATHS)
HEADER = "x-request-deadline-ms"


def post(service, path, headers=None, **fields):
    return service.http.post(path, json={**PATHS[path], **fields}, headers=headers)


def outcomes(service):
    lines = service.http.get("/metrics").text.splitlines()
    found = [line for line in lines if line.startswith("firelane:deadline_requests_total")]
    return {line.partition('outcome="')[2].partition('"')[0]: float(line.split()[-1]) for line in found}


@ALL
def test_fields_reach_the_engine(service, path):
    answer = post(service, path, priority=-3, deadline_ms=600_000)
    assert answer.status_code == 200, answer.text
    assert "x-ignored-fields" not in answer.headers
    request = service.engine.submitted[-1]
    assert request.priority == -3
    assert 500_000 < request.deadline_ms <= 600_000
    assert request.due_tokens == 5
    assert outcomes(service) == {"met": 1.0}


@pytest.mark.parametrize("priority", [2**63 - 1, -(2**63)])
def test_a_priority_may_be_a_time(service, priority):
    assert post(service, "/v1/completions", priority=priority).status_code == 200
    assert service.engine.submitted[-1].priority == priority


@ALL
def test_a_request_that_says_nothing_of_it_has_none(service, path):
    assert post(service, path).status_code == 200
    request = service.engine.submitted[-1]
    assert (request.priority, request.deadline_ms) == (0, 0)
    assert outcomes(service) == {}


@pytest.mark.parametrize(("field", "header"), [(600_000, 900_000), (900_000, 600_000), (None, 600_000)])
def test_of_field_and_header_the_sooner_one_counts(service, field, header):
    given = {} if field is None else {"deadline_ms": field}
    answer = post(service, "/v1/completions", {HEADER: str(header)}, **given)
    assert answer.status_code == 200, answer.text
    assert 500_000 < service.engine.submitted[-1].deadline_ms <= 600_000


def test_without_a_declared_length_the_first_token_is_due(service):
    answer = service.http.post("/v1/chat/completions", json={"messages": USER, "deadline_ms": 600_000})
    assert answer.status_code == 200, answer.text
    assert service.engine.submitted[-1].due_tokens == 1
    assert service.engine.submitted[-1].sampling.max_tokens > 1


def test_an_answer_has_the_same_bytes_with_and_without(service):
    def text(**fields):
        body = post(service, "/v1/completions", seed=7, **fields).json()
        return body["choices"], body["usage"], set(body)

    assert text() == text(priority=4, deadline_ms=600_000)


@ALL
@pytest.mark.parametrize("bad", [0, -5, 86_400_001])
def test_a_deadline_that_is_none_is_refused_with_what_to_do(service, path, bad):
    answer = post(service, path, deadline_ms=bad)
    assert answer.status_code == 400
    assert f"`deadline_ms` is {bad}" in answer.text
    assert "1 to 86400000" in answer.text
    assert not service.engine.submitted


@pytest.mark.parametrize("bad", ["0", "-1", "soon", "", "1.5", "86400001", "9" * 40, "²"])
def test_a_header_that_is_no_deadline(service, bad):
    answer = post(service, "/v1/completions", {HEADER: bad.encode()})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == HEADER
    assert "86400000" in answer.json()["error"]["message"]


@pytest.mark.parametrize("bad", ["high", 1.5, 2**63, [1], True])
def test_a_priority_that_is_none(service, bad):
    answer = post(service, "/v1/chat/completions", priority=bad)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "priority"


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses(service, stream):
    service.engine.reject = "the answer cannot be complete within its deadline"
    service.engine.reject_status, service.engine.reject_code = 503, DeadlineError.reason
    with pytest.raises(openai.InternalServerError) as refused:
        service.openai.chat.completions.create(
            model="toy", messages=USER, stream=stream, extra_body={"deadline_ms": 50_000}
        )
    assert refused.value.status_code == 503
    assert refused.value.code == "deadline_unreachable"
    assert "within its deadline" in refused.value.message
    assert "retry-after" not in refused.value.response.headers
    assert outcomes(service) == {"refused": 1.0}


def test_messages_tell_it_in_their_own_form(service):
    service.engine.reject = "the answer cannot be complete within its deadline"
    service.engine.reject_status, service.engine.reject_code = 503, DeadlineError.reason
    answer = post(service, "/v1/messages", deadline_ms=50_000)
    assert answer.status_code == 529
    assert answer.headers["x-should-retry"] == "false"
    error = answer.json()["error"]
    assert (error["type"], error["details"]) == ("overloaded_error", {"error_code": "deadline_unreachable"})


def test_clients_do_not_send_a_refused_request_again(service):
    service.engine.reject = "the answer cannot be complete within its deadline"
    service.engine.reject_status, service.engine.reject_code = 503, DeadlineError.reason
    client = service.openai.with_options(max_retries=3)
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model="toy", prompt="say", extra_body={"deadline_ms": 50_000})
    assert len(service.engine.submitted) == 1


def test_a_request_whose_time_passes_before_an_engine_has_it(service, monkeypatch):
    def noted(request, fields, now_s):
        note_urgency(request, fields, now_s)
        request.due_s = time.monotonic() - 1.0

    monkeypatch.setattr("firelane.gateway.bodies.note_urgency", noted)
    answer = post(service, "/v1/completions", deadline_ms=1)
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "deadline_unreachable"
    assert not service.engine.submitted
    assert outcomes(service) == {"refused": 1.0}


def test_an_answer_that_comes_late_is_given_all_the_same(service, monkeypatch):
    monkeypatch.setattr("firelane.gateway.requests.run.time", SimpleNamespace(monotonic=lambda: math.inf))
    assert post(service, "/v1/completions", deadline_ms=500_000).status_code == 200
    assert outcomes(service) == {"late": 1.0}


def test_another_engine_is_told_the_time_that_is_left(make_service):
    service = make_service(recovery=Resume())
    service.engine.held = True
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(post(service, "/v1/completions", priority=2, deadline_ms=500_000))
    )
    thread.start()
    service.wait_for(lambda: len(service.engine.submitted) == 1)
    service.run(service.engine.die)
    service.wait_for(lambda: service.link.state is LinkState.DEAD)
    service.engine.held = False
    service.call(service.restart())
    thread.join()
    assert answers[0].status_code == 200, answers[0].text
    first, second = service.engine.submitted
    assert second.id == first.id
    assert second.priority == 2
    assert 0 < second.deadline_ms < first.deadline_ms
