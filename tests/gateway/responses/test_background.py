"""`background` of /v1/responses through the official client, with a scripted engine."""

from __future__ import annotations

import time
from typing import Any

import httpx
import openai
import pytest

PATIENCE_S = 60.0


def ended(service: Any, response_id: str) -> Any:
    """The answer, asked for until it has ended."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        found = service.openai.responses.retrieve(response_id)
        if found.status not in ("queued", "in_progress"):
            return found
    raise AssertionError(f"{response_id} does not end")


@pytest.fixture
def held(service):
    """The engine takes requests and makes no step until the test lets it."""
    service.engine.held = True
    return service


def begin(service: Any, **body: Any) -> Any:
    return service.openai.responses.create(input="hi", background=True, **body)


def go_on(service: Any) -> None:
    service.engine.held = False
    service.run(service.engine.step_on)


def test_an_answer_is_polled_for(held):
    made = begin(held)
    assert (made.status, made.background, made.output) == ("queued", True, [])
    assert held.openai.responses.retrieve(made.id).status == "in_progress"
    go_on(held)
    found = ended(held, made.id)
    assert (found.status, found.output_text, found.background) == ("completed", "hello world", True)
    later = held.openai.responses.create(input="more", previous_response_id=made.id)
    assert later.status == "completed"


def test_it_outlives_its_client(held):
    with httpx.Client(base_url=held.url, trust_env=False, timeout=PATIENCE_S) as client:
        headers = {"authorization": "Bearer k"}
        made = client.post("/v1/responses", json={"input": "hi", "background": True}, headers=headers).json()
    go_on(held)
    assert ended(held, made["id"]).output_text == "hello world"


def test_cancel(held):
    made = begin(held)
    for _ in range(2):  # a second time changes nothing
        assert held.openai.responses.cancel(made.id).status == "cancelled"
    assert held.openai.responses.retrieve(made.id).status == "cancelled"
    assert held.gateway.in_flight == 0


def test_cancel_of_what_has_ended_or_is_not_in_the_background(service):
    made = begin(service)
    ended(service, made.id)
    assert service.openai.responses.cancel(made.id).status == "completed"
    plain = service.openai.responses.create(input="hi")
    with pytest.raises(openai.BadRequestError, match="only an answer made in the background"):
        service.openai.responses.cancel(plain.id)


def test_delete_ends_it(held):
    made = begin(held)
    held.openai.responses.delete(made.id)
    assert held.gateway.in_flight == 0
    with pytest.raises(openai.NotFoundError):
        held.openai.responses.retrieve(made.id)


def test_nobody_sees_or_cancels_anothers(held):
    made = begin(held)
    other = held.openai.with_options(api_key="another")
    for attempt in (other.responses.retrieve, other.responses.cancel, other.responses.delete):
        with pytest.raises(openai.NotFoundError):
            attempt(made.id)
    assert held.openai.responses.retrieve(made.id).status == "in_progress"


def test_one_that_is_being_made_cannot_be_continued(held):
    made = begin(held)
    with pytest.raises(openai.BadRequestError, match="still being made"):
        held.openai.responses.create(input="more", previous_response_id=made.id)


def test_it_adds_to_its_conversation(service):
    conversation = service.openai.conversations.create()
    made = begin(service, conversation=conversation.id)
    ended(service, made.id)
    assert len(service.openai.conversations.items.list(conversation.id).data) == 2


def test_what_is_wrong_is_said_at_once_and_nothing_is_kept(service):
    with pytest.raises(openai.BadRequestError, match="context"):
        service.openai.responses.create(input="x" * 5000, background=True)
    assert len(service.gateway.services.kept.responses) == 0


def test_a_failure_of_the_engine_is_told(service):
    service.engine.reject = "this grammar is too large"
    made = begin(service)
    found = ended(service, made.id)
    assert found.status == "failed"
    assert "too large" in found.error.message


def test_the_server_waits_for_it_when_it_stops(held):
    made = begin(held)
    assert held.gateway.in_flight == 1
    go_on(held)
    assert held.call(held.gateway.drain(PATIENCE_S))
    kept = held.gateway.services.kept.responses
    [entries] = kept._by_tenant.values()
    assert b'"completed"' in entries.entries[made.id].body
