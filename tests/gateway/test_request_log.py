"""The log has a line for each request's end, and never a prompt unless it is asked to."""

from __future__ import annotations

import logging
import threading

import pytest

SECRET = "a-very-private-word"


def lines(caplog, event):
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith(event)]


@pytest.fixture(autouse=True)
def all_levels(caplog):
    caplog.set_level(logging.DEBUG, "firelane")


def test_prompts_are_never_logged(service, caplog):
    bodies = (
        {"prompt": SECRET, "max_tokens": 3},
        {"prompt": SECRET, "max_tokens": 100_000},
        {"prompt": SECRET, "temperature": SECRET},
        {"prompt": SECRET, SECRET: 1},
        {"model": "unknown", "prompt": SECRET},
        {"prompt": SECRET, "stop": SECRET, "stream": True},
    )
    for body in bodies:
        service.http.post("/v1/completions", json=body)
    service.http.post("/v1/chat/completions", json={"messages": [{"role": SECRET, "content": SECRET}]})
    service.http.post("/v1/completions", content=SECRET)
    service.http.get(f"/nowhere?q={SECRET}")
    assert len(lines(caplog, "request_ended")) == 3
    assert len(lines(caplog, "request_refused")) >= 5
    assert SECRET not in caplog.text


def test_prompts_are_logged_when_asked(make_service, caplog):
    service = make_service(log_prompts=True)
    service.http.post(
        "/v1/completions", json={"prompt": SECRET, "max_tokens": 1}, headers={"x-request-id": "me"}
    )
    (line,) = lines(caplog, "request_prompt")
    assert line == f"request_prompt id=me prompt={SECRET}"


@pytest.mark.parametrize("stream", [True, False])
def test_each_end_has_one_line(service, caplog, stream):
    service.http.post(
        "/v1/completions", json={"prompt": ["a", "b"], "n": 2, "max_tokens": 2, "stream": stream}
    )
    (line,) = lines(caplog, "request_ended")
    for part in (
        "tenant=open",
        "status=200",
        "prompt_tokens=4",
        "generated_tokens=8",
        "finish_reason=length",
    ):
        assert part in line
    ttft_ms, total_ms = (float(line.split(f"{name}=")[1].split()[0]) for name in ("ttft_ms", "total_ms"))
    assert 0 < ttft_ms <= total_ms


def test_an_engine_that_dies_is_a_line_too(service, caplog):
    service.run(setattr, service.engine, "held", True)
    assert _late(service).status_code == 503
    (line,) = lines(caplog, "request_ended")
    assert "status=503" in line
    assert "finish_reason=error" in line
    assert "ttft_ms=-" in line
    assert "prompt_tokens=0" in line


def _late(service):
    """A request whose engine dies before its first token."""

    def kill():
        service.wait_for(lambda: bool(service.engine.running))
        service.run(service.engine.die)

    thread = threading.Thread(target=kill)
    thread.start()
    answer = service.http.post("/v1/completions", json={"prompt": "a"})
    thread.join()
    return answer
