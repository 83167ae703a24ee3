"""Dynamo itself: its frontend and its KV router over four Firelane engines.

For an interpreter that has Dynamo and firelane-dynamo: FIRELANE_TEST_DYNAMO=/path/to/bin/python.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from dynamo_fleet import MODEL, TIMEOUT_S, Fleet, engine_of

PYTHON = os.environ.get("FIRELANE_TEST_DYNAMO", "")
WORKERS = 4
STORY = list(range(300, 428))
"""Eight blocks of tokens."""


def _lacks() -> str:
    if not PYTHON:
        return "FIRELANE_TEST_DYNAMO names no interpreter that has NVIDIA Dynamo"
    done = subprocess.run([PYTHON, "-c", "import dynamo.frontend, firelane_dynamo"], capture_output=True)
    return "" if done.returncode == 0 else f"{PYTHON} does not import dynamo and firelane_dynamo"


LACKS = _lacks()
pytestmark = pytest.mark.skipif(bool(LACKS), reason=LACKS or "none")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Iterator[Fleet]:
    directory = tmp_path_factory.mktemp("dynamo")
    router = ("--router-mode", "kv", "--migration-limit", "3")
    with Fleet(Path(PYTHON), directory, cache_dir, router) as made:
        for _ in range(WORKERS):
            made.worker()
        made.until_ready(WORKERS)
        yield made


def text_of(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["text"]


def streamed(fleet: Fleet, at_first: Any = None, **fields: Any) -> tuple[str, dict[str, Any]]:
    """Text and usage. at_first: called after the first chunk."""
    text, usage = "", {}
    body = {"model": MODEL, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{fleet.url}/v1/completions", json=body | fields, timeout=TIMEOUT_S) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            assert "choices" in chunk, line
            text += "".join(choice.get("text") or "" for choice in chunk["choices"])
            usage = chunk.get("usage") or usage
            if at_first is not None and text:
                at_first()
                at_first = None
    return text, usage


def test_chat(fleet: Fleet) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    answer = httpx.post(f"{fleet.url}/v1/chat/completions", json=body, timeout=TIMEOUT_S).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 8


def test_all_workers_give_the_same_answers_also_in_streams(fleet: Fleet) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: fleet.complete(STORY, max_tokens=32), range(16)))
    assert len({text_of(answer) for answer in answers}) == 1
    text, usage = streamed(fleet, prompt=STORY, max_tokens=32)
    assert text == text_of(answers[0])
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(STORY), 32)


def test_sampled_with_a_seed_and_logprobs(fleet: Fleet) -> None:
    fields = {"max_tokens": 8, "temperature": 1.0, "seed": 11, "logprobs": 2, "n": 2}
    one, other = (
        sorted(
            fleet.complete(STORY, **fields)["choices"], key=lambda choice: choice["index"]
        )  # come in any order
        for _ in range(2)
    )
    assert one == other
    assert [choice["index"] for choice in one] == [0, 1]
    assert [len(choice["logprobs"]["token_logprobs"]) for choice in one] == [8, 8]


def test_a_bad_request_is_refused(fleet: Fleet) -> None:
    body = {"model": MODEL, "prompt": [1] * 5000}
    answer = httpx.post(f"{fleet.url}/v1/completions", json=body, timeout=TIMEOUT_S)
    assert answer.status_code == 400, answer.text


def test_a_prefix_is_found_again(fleet: Fleet) -> None:
    prompt = list(range(500, 660))
    assert streamed(fleet, prompt=prompt, max_tokens=4)[1]["prompt_tokens_details"]["cached_tokens"] == 0
    cached = [
        streamed(fleet, prompt=[*prompt, 300 + i], max_tokens=4)[1]["prompt_tokens_details"]["cached_tokens"]
        for i in range(4)
    ]
    assert cached == [160] * 4


@pytest.mark.parametrize("victim", ["engine", "worker"])
def test_streams_go_on_when_a_process_is_killed(fleet: Fleet, victim: str) -> None:
    """An engine that dies is started again by its worker; what a worker had goes on at another one."""
    fields = {"max_tokens": 1000, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    prompts = [[300 + i, 400, 401] for i in range(8)]
    whole = [streamed(fleet, prompt=prompt, **fields)[0] for prompt in prompts]

    def kill() -> None:
        worker = fleet.busy_worker()
        os.kill(worker.pid if victim == "worker" else engine_of(worker), signal.SIGKILL)

    begun = threading.Barrier(len(prompts), kill)
    with ThreadPoolExecutor(len(prompts)) as pool:
        calls = [pool.submit(streamed, fleet, begun.wait, prompt=p, **fields) for p in prompts]
        assert [call.result()[0] for call in calls] == whole
    if victim == "worker":
        metrics = httpx.get(f"{fleet.url}/metrics", timeout=TIMEOUT_S).text
        assert 'migration_total{migration_type="ongoing_request"' in metrics


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Iterator[Fleet]:
    with Fleet(Path(PYTHON), tmp_path_factory.mktemp("pair"), cache_dir, ("--router-mode", "kv")) as made:
        for mode in ("prefill", "decode"):
            made.worker("--disaggregation-mode", mode, *made.page_exchange())
        made.until_ready(2)
        yield made


def test_prefill_and_decode_apart_give_the_answer_of_one_worker(fleet: Fleet, pair: Fleet) -> None:
    fields = {"prompt": STORY, "max_tokens": 32, "temperature": 1.0, "seed": 5}
    text, usage = streamed(pair, **fields)
    assert text == streamed(fleet, **fields)[0]
    assert (
        usage["prompt_tokens_details"]["cached_tokens"] == len(STORY) - 16
    )  # all but the page of its last token
    assert "request received" in pair.log("worker1")
    assert "request received" in pair.log("worker2")
