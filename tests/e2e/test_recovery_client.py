"""Engines that are killed, stopped and replaced under a real `openai` client: it notices nothing, and what it
gets is what it would have got.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from e2e_support import MODEL, metric, wait_until
from steady_answers import CHAT, COMPLETION, Connect, stream, under_load, undisturbed

from firelane.bench.server import ServerProcess


@pytest.fixture(scope="module", params=[1, 2])
def server(request: pytest.FixtureRequest, environ: dict[str, str], tmp_path_factory: Any) -> Iterator[Any]:
    data_dir = str(tmp_path_factory.mktemp("data"))
    options = ["--replicas", str(request.param), "--data-dir", data_dir]
    with ServerProcess(options, environ=environ) as started:
        all_up(started, request.param)
        yield started


def all_up(server: ServerProcess, replicas: int) -> None:
    wait_until(lambda: metric(server.url, "firelane:replicas_up") == replicas)


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
