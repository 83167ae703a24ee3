"""Priorities and deadlines through whole servers, by the openai client and through relays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from e2e_support import MODEL

from firelane.bench.server import ServerProcess

LONG = {"max_tokens": 1900, "extra_body": {"ignore_eos": True, "deadline_ms": 1}}
AMPLE = 600_000


@pytest.fixture(scope="module")
def two_gateways(environ: dict[str, str]) -> Iterator[ServerProcess]:
    with ServerProcess(["--backend", "null", "--gateways", "2"], environ=environ) as server:
        yield server


def text(client: openai.OpenAI, **extra: Any) -> str:
    answer = client.completions.create(
        model=MODEL, prompt="say", max_tokens=30, seed=5, extra_body={"ignore_eos": True, **extra}
    )
    return answer.choices[0].text


def test_an_answer_is_the_same_however_soon_it_is_wanted(
    null_server: ServerProcess, connect: Callable[[ServerProcess], openai.OpenAI]
) -> None:
    client = connect(null_server)
    assert text(client) == text(client, priority=-7, deadline_ms=AMPLE) == text(client, priority=3)


@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_in_time_is_refused(
    null_server: ServerProcess, connect: Callable[[ServerProcess], openai.OpenAI], stream: bool
) -> None:
    client = connect(null_server).with_options(max_retries=0)
    text(client)  # the engine has run some steps: it knows its pace
    with pytest.raises(openai.InternalServerError) as refused:
        client.completions.create(model=MODEL, prompt="say", stream=stream, **LONG)
    assert refused.value.status_code == 503
    assert refused.value.code == "deadline_unreachable"
    assert text(client)


def test_a_relayed_request_keeps_its_deadline(two_gateways: ServerProcess) -> None:
    url = f"{two_gateways.url}/v1/responses"
    body = {"input": "say", "max_output_tokens": 1500, "ignore_eos": True, "priority": 1}
    for _ in range(4):  # each by a connection of its own, to either process
        answer = httpx.post(url, json={**body, "max_output_tokens": 9}, timeout=600)
        assert answer.status_code == 200, answer.text
        answer = httpx.post(url, json=body, headers={"x-request-deadline-ms": "1"}, timeout=600)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "deadline_unreachable")
        ample = {**body, "max_output_tokens": 9, "deadline_ms": AMPLE}
        assert httpx.post(url, json=ample, timeout=600).status_code == 200
