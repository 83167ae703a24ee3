"""`background` with `stream` through the official client: events that are there for whoever comes back."""

from __future__ import annotations

import itertools
from typing import Any

import openai
import pytest


@pytest.fixture
def held(service):
    """The engine takes requests and makes no step until the test lets it."""
    service.engine.held = True
    return service


def begin(service: Any, **body: Any) -> Any:
    return service.openai.responses.create(input="hi", background=True, stream=True, **body)


def follow(service: Any, response_id: str, **query: Any) -> Any:
    return service.openai.responses.retrieve(response_id, stream=True, **query)


def go_on(service: Any) -> None:
    service.engine.held = False
    service.run(service.engine.step_on)


def text_of(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def opened(service: Any) -> str:
    """The id of an answer whose client saw its first two events and left."""
    with begin(service) as stream:
        first, second = itertools.islice(stream, 2)
    assert (first.type, second.type) == ("response.created", "response.in_progress")
    return first.response.id


def test_a_client_that_stays_sees_all_events(service):
    events = list(begin(service))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert text_of(events) == "hello world"
    assert events[-1].type == "response.completed"
    assert events[-1].response.background
    assert service.openai.responses.retrieve(events[-1].response.id).output_text == "hello world"


def test_a_client_that_left_comes_back_while_it_is_made(held):
    response_id = opened(held)
    assert held.openai.responses.retrieve(response_id).status == "in_progress"
    stream = follow(held, response_id, starting_after=1)
    go_on(held)
    events = list(stream)
    assert [event.sequence_number for event in events] == list(range(2, 2 + len(events)))
    assert text_of(events) == "hello world"
    assert held.openai.responses.retrieve(response_id).status == "completed"


def test_any_number_of_clients_at_any_time(held):
    response_id = opened(held)
    streams = [follow(held, response_id), follow(held, response_id, starting_after=0)]
    go_on(held)
    whole, rest = (list(stream) for stream in streams)
    assert whole[1:] == rest
    assert list(follow(held, response_id)) == whole
    for number in range(len(whole)):
        assert list(follow(held, response_id, starting_after=number)) == whole[number + 1 :]


def test_cancelling_ends_the_stream(held):
    response_id = opened(held)
    stream = follow(held, response_id)
    held.openai.responses.cancel(response_id)
    *_, last = stream
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
    assert held.gateway.in_flight == 0


def test_deleting_ends_the_stream_and_forgets_the_events(held):
    response_id = opened(held)
    stream = follow(held, response_id, starting_after=1)
    held.openai.responses.delete(response_id)
    assert [event.response.status for event in stream] == ["cancelled"]
    with pytest.raises(openai.NotFoundError):
        follow(held, response_id)


def test_a_failure_of_the_engine_is_an_event(service):
    service.engine.reject = "this grammar is too large"
    events = list(begin(service))
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]
    assert "too large" in events[-1].response.error.message
    assert service.openai.responses.retrieve(events[-1].response.id).status == "failed"


def test_an_engine_that_dies_is_an_event(held):
    response_id = opened(held)
    stream = follow(held, response_id)
    held.run(held.engine.die)
    *_, last = stream
    assert last.type == "response.failed"


def test_what_is_wrong_is_said_at_once_and_nothing_is_kept(service):
    with pytest.raises(openai.BadRequestError, match="context"):
        service.openai.responses.create(input="x" * 5000, background=True, stream=True)
    assert len(service.gateway.services.kept.responses) == 0


def test_nobody_follows_anothers(held):
    response_id = opened(held)
    with pytest.raises(openai.NotFoundError):
        held.openai.with_options(api_key="another").responses.retrieve(response_id, stream=True)


def test_only_answers_with_events_are_streamed(service):
    plain = service.openai.responses.create(input="hi")
    with pytest.raises(openai.BadRequestError, match="made with `background` and `stream`"):
        follow(service, plain.id)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("starting_after=1", "is for `stream=true`"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=maybe", "stream"),
        ("strem=true", "unknown query field"),
    ],
)
def test_wrong_queries(service, query: str, message: str):
    made = service.openai.responses.create(input="hi")
    answer = service.http.get(f"/v1/responses/{made.id}?{query}", headers={"authorization": "Bearer k"})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_the_server_waits_for_it_when_it_stops(held):
    response_id = opened(held)
    stream = follow(held, response_id, starting_after=1)
    go_on(held)
    assert held.call(held.gateway.drain(60.0))
    assert list(stream)[-1].type == "response.completed"
