"""Engines that are killed, stopped and replaced under a real `openai` client: it notices nothing, and what it
gets is what it would have got.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from e2e_support import MODEL, metric, wait_until

from firelane.bench.server import ServerProcess

Connect = Callable[[ServerProcess], openai.OpenAI]
CHAT: list[Any] = [{"role": "user", "content": "def weather(city):"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 40}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}
LONG: dict[str, Any] = {"model": MODEL, "max_tokens": 400, "extra_body": {"ignore_eos": True}}
COMPLETION = {**LONG, "prompt": "import os\n\ndef walk(path):"}
FORMAT = {"type": "json_schema", "json_schema": {"name": "report", "schema": SCHEMA, "strict": True}}


def stream(client: openai.OpenAI, **body: Any) -> Any:
    """Texts and log-probabilities by choice."""
    parts: dict[int, list[Any]] = {}
    for chunk in client.completions.create(stream=True, **body):
        for choice in chunk.choices:
            logprobs = choice.logprobs and choice.logprobs.token_logprobs
            parts.setdefault(choice.index, []).append((choice.text, logprobs, choice.finish_reason))
    return {
        index: ("".join(text for text, _, _ in part), part[-1][2]) for index, part in parts.items()
    }, parts


def chat(client: openai.OpenAI, **body: Any) -> Any:
    answer = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=300, **body).choices[0]
    calls = [(c.function.name, c.function.arguments) for c in answer.message.tool_calls or []]
    return answer.message.content, calls, answer.finish_reason


REQUESTS: dict[str, Callable[[openai.OpenAI], Any]] = {
    "greedy": lambda client: stream(client, **COMPLETION, temperature=0),
    "seeded": lambda client: stream(client, **COMPLETION, seed=5),
    "two answers": lambda client: stream(client, **COMPLETION, seed=6, n=2),
    "logprobs": lambda client: stream(client, **COMPLETION, seed=7, logprobs=2),
    "penalties": lambda client: stream(client, **COMPLETION, seed=8, frequency_penalty=0.5),
    "stop string": lambda client: stream(client, **COMPLETION, seed=9, stop=["never to be seen", "zzzz"]),
    "whole": lambda client: client.completions.create(**COMPLETION, seed=10).choices[0].text,
    "schema": lambda client: chat(client, seed=11, response_format=FORMAT),
    "tool": lambda client: chat(client, seed=12, tools=[TOOL], tool_choice="required"),
    "embeddings": lambda client: [
        item.embedding
        for item in client.embeddings.create(model=MODEL, input=[[i] * 900 for i in range(60, 66)]).data
    ],
    "response": lambda client: (
        client.responses.create(
            model=MODEL, input="def main():", temperature=0, max_output_tokens=300, store=False
        ).output_text
    ),
}


@pytest.fixture(scope="module", params=[1, 2])
def server(request: pytest.FixtureRequest, environ: dict[str, str], tmp_path_factory: Any) -> Iterator[Any]:
    data_dir = str(tmp_path_factory.mktemp("data"))
    options = ["--replicas", str(request.param), "--data-dir", data_dir]
    with ServerProcess(options, environ=environ) as started:
        all_up(started, request.param)
        yield started


UNDISTURBED: dict[str, Any] = {}
"""Of the first server that was asked: the number of replicas makes no difference."""


def undisturbed(client: openai.OpenAI) -> dict[str, Any]:
    if not UNDISTURBED:
        UNDISTURBED.update({name: ask(client) for name, ask in REQUESTS.items()})
    return UNDISTURBED


def all_up(server: ServerProcess, replicas: int) -> None:
    wait_until(lambda: metric(server.url, "firelane:replicas_up") == replicas)


def under_load(server: ServerProcess, connect: Connect, disturb: Callable[[], None]) -> dict[str, Any]:
    """The answers to all of REQUESTS, at the same time, while something is done to the engines."""
    client, generated = connect(server), metric(server.url, "vllm:generation_tokens_total")
    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        answers: dict[str, Future[Any]] = {n: pool.submit(ask, client) for n, ask in REQUESTS.items()}
        wait_until(lambda: metric(server.url, "vllm:generation_tokens_total") > generated + 50)
        disturb()
        return {name: answer.result() for name, answer in answers.items()}


def kill_one(server: ServerProcess, replicas: int, number: signal.Signals = signal.SIGKILL) -> None:
    all_up(server, replicas)
    deaths = metric(server.url, "firelane:engine_deaths_total")
    os.kill(server.engine_pids[0], number)
    wait_until(lambda: metric(server.url, "firelane:engine_deaths_total") > deaths)


def test_answers_survive_their_engines(server: ServerProcess, connect: Connect) -> None:
    replicas = len(server.engine_pids)
    expected = undisturbed(connect(server))
    resumed = metric(server.url, "firelane:sequences_resumed_total")
    for _ in range(5):  # streams may end before the engine does that has them
        found = under_load(server, connect, lambda: [kill_one(server, replicas) for _ in range(2)] and None)
        assert found == expected
        all_up(server, replicas)
        if metric(server.url, "firelane:sequences_resumed_total") > resumed:
            break
    else:
        pytest.fail("no stream was under way when an engine was killed")
    found = under_load(server, connect, lambda: kill_one(server, replicas, signal.SIGTERM))
    assert found == expected
    all_up(server, replicas)


def kill_all(server: ServerProcess, replicas: int) -> None:
    wait_until(lambda: len(server.engine_pids) == replicas)
    pids, deaths = server.engine_pids, metric(server.url, "firelane:engine_deaths_total")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: metric(server.url, "firelane:engine_deaths_total") >= deaths + replicas)


@pytest.mark.parametrize("server", [2], indirect=True)
def test_many_streams_survive_the_death_of_all_engines_at_once(
    server: ServerProcess, connect: Connect
) -> None:
    """And that of the next ones, which have begun none of them yet."""
    replicas = len(server.engine_pids)
    all_up(server, replicas)
    client = connect(server)
    bodies = [{**COMPLETION, "max_tokens": 200, "prompt": f"def f{i}(", "seed": i} for i in range(24)]
    with ThreadPoolExecutor(len(bodies)) as pool:
        expected = list(pool.map(lambda body: stream(client, **body)[0], bodies))
        generated = metric(server.url, "vllm:generation_tokens_total")
        answers = [pool.submit(stream, client, **body) for body in bodies]
        wait_until(lambda: metric(server.url, "vllm:generation_tokens_total") > generated + 500)
        for _ in range(2):
            kill_all(server, replicas)
        assert [answer.result()[0] for answer in answers] == expected
    all_up(server, replicas)


def test_an_unseeded_stream_goes_on(server: ServerProcess, connect: Connect) -> None:
    client, replicas = connect(server), len(server.engine_pids)
    all_up(server, replicas)
    texts = iter(client.completions.create(stream=True, **{**COMPLETION, "max_tokens": 1500}))
    next(texts)
    for pid in server.engine_pids:
        generated = metric(server.url, "vllm:generation_tokens_total")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda before=generated: metric(server.url, "vllm:generation_tokens_total") > before + 20)
    chunks = list(texts)
    assert chunks[-1].choices[0].finish_reason == "length"
    all_up(server, replicas)


def test_an_engine_that_is_stopped_is_replaced(server: ServerProcess, connect: Connect) -> None:
    replicas = len(server.engine_pids)
    all_up(server, replicas)
    expected = undisturbed(connect(server))
    found = under_load(server, connect, lambda: os.kill(server.engine_pids[0], signal.SIGSTOP))
    assert found == expected
    assert "shown no life" in server.log or replicas > 1
    wait_until(lambda: "shown no life" in server.log)
    all_up(server, replicas)


def test_a_rolling_restart_goes_unnoticed(server: ServerProcess, connect: Connect) -> None:
    before = server.engine_pids
    expected = undisturbed(connect(server))
    found = under_load(server, connect, lambda: server.process.send_signal(signal.SIGUSR2))
    assert found == expected
    wait_until(lambda: "restart_complete" in server.log)
    assert not set(before) & set(server.engine_pids)
    assert len(server.engine_pids) == len(before)


@pytest.mark.parametrize("server", [1], indirect=True)
def test_a_batch_goes_on(server: ServerProcess, connect: Connect, tmp_path: Path) -> None:
    client, replicas = connect(server), len(server.engine_pids)
    body = {"model": MODEL, "messages": CHAT, "max_tokens": 200}
    lines = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": {**body, "seed": i}}
        for i in range(40)
    ]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = client.files.create(file=path, purpose="batch")
    batch = client.batches.create(
        input_file_id=source.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    wait_until(lambda: metric(server.url, "vllm:num_requests_running") > 0)
    kill_one(server, replicas)
    wait_until(lambda: client.batches.retrieve(batch.id).status == "completed")
    counts = client.batches.retrieve(batch.id).request_counts
    assert counts is not None
    assert (counts.completed, counts.failed) == (40, 0)


def test_without_recovery_a_stream_fails_with_its_engine(environ: dict[str, str], connect: Connect) -> None:
    with ServerProcess(["--no-recovery"], environ=environ) as server:
        texts = connect(server).completions.create(stream=True, **COMPLETION)
        next(iter(texts))
        os.kill(server.engine_pids[0], signal.SIGKILL)
        with pytest.raises(openai.APIError, match="engine"):
            list(texts)
