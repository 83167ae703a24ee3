"""The link: requests that would make too large a frame, and one engine in another's place."""

from __future__ import annotations

import msgspec
import pytest

from firelane.engine_state import LinkState
from firelane.errors import FrameError
from firelane.gateway.config import HttpLimits
from firelane.link.framing import encode
from firelane.wire import submissions
from firelane.wire.frames import Finished, Grammar, NewRequest, Sampling
from firelane.wire.submissions import restored


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
    monkeypatch.setattr(submissions, "SUBMIT_BYTES", 7)
    requests = [_request(i, b"x" * size) for i, size in enumerate(sizes)]
    cut = [list(restored(frame.requests)) for frame in submissions.submissions(requests)]
    assert [r for frame in cut for r in frame] == requests
    assert len(cut) == frames
    assert all(len(frame) == 1 or sum(len(r.prompt) for r in frame) <= 7 for frame in cut)


def test_one_request_may_be_larger_than_a_frame(service, monkeypatch):
    monkeypatch.setattr(submissions, "SUBMIT_BYTES", 100)
    answer = service.http.post("/v1/completions", json={"prompt": "long" * 20, "n": 4})
    assert answer.status_code == 200
    assert service.engine.submit_frames == 1


def test_grammars_count_in_a_frame(monkeypatch):
    monkeypatch.setattr(submissions, "SUBMIT_BYTES", 2000)
    grammars = [Grammar("regex", f"{i}" * 200) for i in range(6)]
    requests = [msgspec.structs.replace(_request(i), grammar=grammar) for i, grammar in enumerate(grammars)]
    assert len(list(submissions.submissions(requests))) == 3


def test_choices_of_a_request_carry_prompt_and_grammar_once(service):
    body = {"prompt": "long" * 20, "n": 8, "guided_regex": "x" * 2000, "max_tokens": 3}
    answer = service.http.post("/v1/completions", json=body)
    assert [choice["text"] for choice in answer.json()["choices"]] == ["hel"] * 8
    sent = service.engine.submitted
    assert len({request.prompt for request in sent}) == len({request.grammar for request in sent}) == 1
    assert len({request.sampling.seed for request in sent}) == 8
    (frame,) = submissions.submissions(sent)
    assert len(encode(frame)) < 4000
    assert list(restored(frame.requests)) == sent


def test_a_frame_that_repeats_nothing():
    with pytest.raises(FrameError, match="repeats"):
        list(restored([msgspec.structs.replace(_request(1), repeats=True)]))


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_fails_is_the_requests_own_fault(service, stream):
    def failing(frame):
        ended = [Finished(f.id, "error", "the grammar cannot be used") for f in frame.finished]
        return msgspec.structs.replace(frame, finished=ended)

    service.engine.frame = failing
    body = {"prompt": "a", "guided_regex": "x*", "max_tokens": 3, "stream": stream}
    answer = service.http.post("/v1/completions", json=body)
    assert answer.status_code == (200 if stream else 400)
    assert "the grammar cannot be used" in answer.text
    assert "grammar_failed" in answer.text
    assert service.gateway.in_flight == 0


def test_a_grammar_that_is_too_long_does_not_reach_the_engine(make_service):
    service = make_service(limits=HttpLimits())
    tool = {"name": "t", "parameters": {"type": "object", "properties": {f"p{i}": {} for i in range(3000)}}}
    tools = [{"type": "function", "function": {**tool, "name": f"t{i}"}} for i in range(2)]
    chat = {"messages": [{"role": "user", "content": "a"}], "n": 8}
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["x" * 140_000]}}}
    for body in (
        {**chat, "tools": tools, "tool_choice": "required"},
        {**chat, "response_format": schema},
    ):
        answer = service.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert "at most" in answer.text
    assert service.engine.submitted == []


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


@pytest.mark.parametrize("broken", ["on_started", "on_logprobs", "ending", "on_tokens", "on_end"])
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
    assert sinks[1].calls == ["on_started", "on_logprobs", "ending", "on_tokens", "on_end"]
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
