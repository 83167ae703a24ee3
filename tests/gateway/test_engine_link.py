"""The link: requests that would make too large a frame, and one engine in another's place."""

from __future__ import annotations

import pytest

from firelane.gateway.engines import connection
from firelane.gateway.engines.link import LinkState
from firelane.wire.frames import NewRequest, Sampling


def test_another_engine_takes_the_place_of_one_that_still_holds_requests(service):
    """Its socket may outlive it in a process that it started: what was in flight must fail, not hang."""
    failed = []
    service.run(setattr, service.engine, "held", True)
    sink = type("Sink", (), {"on_failed": lambda _, error: failed.append(str(error))})()
    first = service.engine.sock
    service.run(service.link.submit, _request(service.link.next_id()), sink)
    service.wait_for(lambda: bool(service.engine.running))
    service.run(service.loop.remove_reader, first)
    service.engine.sock = None  # the old end stays open
    service.run(setattr, service.engine, "held", False)
    service.call(service.restart())
    assert failed == ["the engine ended while the request was in flight: another engine takes its place"]
    assert service.link.in_flight == 0
    assert service.link.state is LinkState.READY
    assert service.http.post("/v1/completions", json={"prompt": "a"}).status_code == 200
    first.close()


@pytest.mark.parametrize(("sizes", "frames"), [([], 0), ([1], 1), ([3, 4], 1), ([4, 4, 9, 1], 4), ([9], 1)])
def test_many_long_prompts_travel_in_several_frames(monkeypatch, sizes, frames):
    monkeypatch.setattr(connection, "SUBMIT_BYTES", 7)
    requests = [_request(i, b"x" * size) for i, size in enumerate(sizes)]
    cut = [frame.requests for frame in connection.submissions(requests)]
    assert [r for frame in cut for r in frame] == requests
    assert len(cut) == frames
    assert all(len(frame) == 1 or sum(len(r.prompt) for r in frame) <= 7 for frame in cut)


def test_one_request_may_be_larger_than_a_frame(service, monkeypatch):
    monkeypatch.setattr(connection, "SUBMIT_BYTES", 100)
    answer = service.http.post("/v1/completions", json={"prompt": "long" * 20, "n": 4})
    assert answer.status_code == 200
    assert service.engine.submit_frames == 4


def test_grammars_count_in_a_frame(service, monkeypatch):
    monkeypatch.setattr(connection, "SUBMIT_BYTES", 2000)
    body = {"prompt": "a", "n": 6, "guided_regex": "x" * 200}
    assert service.http.post("/v1/completions", json=body).status_code == 200
    assert service.engine.submit_frames == 3


class BrokenSink:
    """Raises in one of its methods, and counts the calls of all."""

    def __init__(self, broken):
        self.broken, self.calls = broken, []

    def __getattr__(self, name):
        def call(*_):
            self.calls.append(name)
            if name == self.broken:
                raise ValueError(name)

        return call


@pytest.mark.parametrize("broken", ["on_started", "on_logprobs", "ending", "on_token", "on_end"])
def test_a_defect_in_one_sink_leaves_the_others(service, broken):
    service.run(setattr, service.engine, "held", True)
    sinks = [BrokenSink(broken), BrokenSink(None)]
    for sink in sinks:
        request = NewRequest(
            id=service.link.next_id(), prompt=b"\1\0\0\0", sampling=Sampling(max_tokens=1, logprobs=0)
        )
        service.run(service.link.submit, request, sink)
    service.wait_for(lambda: len(service.engine.running) == 2)
    service.run(service.engine.step)
    service.wait_for(lambda: "on_end" in sinks[1].calls)
    assert sinks[0].calls[-1] == "on_failed"
    assert sinks[1].calls == ["on_started", "on_logprobs", "ending", "on_token", "on_end"]
    assert service.link.in_flight == 0


def test_a_sink_that_cannot_fail_does_not_hide_the_engines_death(service):
    service.run(setattr, service.engine, "held", True)
    sinks = [BrokenSink("on_failed"), BrokenSink(None)]
    for sink in sinks:
        service.run(service.link.submit, _request(service.link.next_id()), sink)
    service.wait_for(lambda: len(service.engine.running) == 2)
    service.run(service.engine.die)
    service.wait_for(lambda: bool(service.downs))
    assert [sink.calls for sink in sinks] == [["on_failed"]] * 2


def _request(request_id, prompt=b"\1\0\0\0"):
    return NewRequest(id=request_id, prompt=prompt, sampling=Sampling())
