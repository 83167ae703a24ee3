"""Requests of many sequences: they are made and submitted in parts, and others have their turns between."""

from __future__ import annotations

import asyncio
import threading

import pytest

from firelane.errors import EngineDeadError, RequestError
from firelane.gateway.requests import run
from firelane.gateway.requests.run import SEQUENCE_COST, RequestRun, TimeSlice
from firelane.text.chat import assistant
from firelane.text.tokens import tokenizer as module

PROMPTS = [[i + 1] * 3 for i in range(8)]
BODY = {"prompt": PROMPTS, "max_tokens": 2}


@pytest.fixture
def short_turns(monkeypatch):
    """A turn submits two sequences."""
    monkeypatch.setattr(run, "TURN_COST", 2 * SEQUENCE_COST)


@pytest.fixture
def submitted(monkeypatch):
    """The run, once for each of its sequences that was submitted; `at` is called with it and their number."""
    real = RequestRun.submit

    def submit(self, *new):
        runs.append(self)
        if runs.at is not None:
            runs.at(len(runs))
        real(self, *new)

    class Runs(list):
        at = None

    runs = Runs()
    monkeypatch.setattr(RequestRun, "submit", submit)
    return runs


def test_few_sequences_travel_together(service):
    assert service.http.post("/v1/completions", json=BODY).status_code == 200
    assert service.engine.submit_frames == 1


@pytest.mark.usefixtures("short_turns")
def test_many_are_submitted_in_parts_and_answered_in_order(service):
    service.text = "x" * 10
    answer = service.http.post("/v1/completions", json=BODY).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(8))
    assert [choice["text"] for choice in answer["choices"]] == ["xx"] * 8
    assert [list(memoryview(r.prompt).cast("i")) for r in service.engine.submitted] == PROMPTS
    assert service.engine.submit_frames > 1
    assert answer["usage"]["prompt_tokens"] == 24


def test_others_have_their_turns():
    async def work() -> list[str]:
        seen: list[str] = []
        asyncio.get_running_loop().call_soon(seen.append, "other")
        mine = TimeSlice()
        for part in ("a", "b"):
            await mine.take(run.TURN_COST // 2)
            seen.append(part)
        await mine.take(1)
        seen.append("c")
        return seen

    assert asyncio.run(work()) == ["a", "b", "other", "c"]


@pytest.mark.usefixtures("short_turns")
def test_a_request_that_has_ended_submits_no_more(service, submitted, monkeypatch):
    async def take(_self, _cost):
        if len(submitted) == 3:
            submitted[0].fail(RequestError("enough"))

    monkeypatch.setattr(TimeSlice, "take", take)
    service.engine.held = True
    assert service.http.post("/v1/completions", json=BODY).status_code == 400
    assert len(submitted) == 3
    service.wait_for(lambda: service.model.admission.held == 0)


@pytest.mark.parametrize(("error", "status"), [(EngineDeadError("gone"), 503), (RuntimeError("bug"), 500)])
@pytest.mark.parametrize("at", [1, 3])
def test_a_submission_that_fails(service, submitted, error, status, at):
    def fail(number):
        if number == at:
            raise error

    submitted.at = fail
    service.engine.held = True
    assert service.http.post("/v1/completions", json=BODY).status_code == status
    service.wait_for(lambda: service.model.admission.held == 0 and not service.model.engines.in_flight)
    submitted.at, service.engine.held = None, False
    assert service.http.post("/v1/completions", json=BODY).status_code == 200


def test_embeddings_that_end_while_others_are_submitted(service, monkeypatch):
    async def take(_self, _cost):
        steps = service.engine.steps
        for _ in range(100):
            if service.engine.steps > steps:
                return
            await asyncio.sleep(0)

    monkeypatch.setattr(TimeSlice, "take", take)
    answer = service.http.post(
        "/v1/embeddings", json={"input": PROMPTS[:5], "dimensions": 2, "normalize": False}
    )
    assert [one["embedding"] for one in answer.json()["data"]] == [[3.0, i + 1.0] for i in range(5)]
    assert len(service.engine.submitted) == 5


@pytest.mark.parametrize(("messages", "on_loop"), [(2, True), (300, False)])
def test_large_conversations_are_prepared_off_the_loop(service, monkeypatch, messages, on_loop):
    threads, real = [], assistant.chat_conversation

    def conversation(*given):
        threads.append(threading.current_thread())
        return real(*given)

    monkeypatch.setattr(assistant, "chat_conversation", conversation)
    body = {"messages": [{"role": "user", "content": "x"}] * messages, "max_tokens": 1}
    service.http.post("/v1/chat/completions", json=body)
    assert (threads == [service.run(threading.current_thread)]) is on_loop


@pytest.mark.parametrize(("prompts", "on_loop"), [(2, True), (70, False)])
def test_many_token_ids_are_packed_off_the_loop(monkeypatch, prompts, on_loop):
    threads, real = set(), module.pack_ids

    def pack(ids):
        threads.add(threading.current_thread())
        return real(ids)

    monkeypatch.setattr(module, "pack_ids", pack)
    packed = asyncio.run(module.pack_prompts([[7] * 1000] * prompts))
    assert packed == [real([7] * 1000)] * prompts
    assert (threads == {threading.current_thread()}) is on_loop
