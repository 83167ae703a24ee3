"""An engine of two ranks under a real `openai` client: the answers of one, also when ranks are lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from e2e_support import MODEL, metric, wait_until

from firelane.backends.cpu.ranks.interconnect import usable_cores
from firelane.bench.server import ServerProcess

Connect = Callable[[ServerProcess], openai.OpenAI]
FAULTS = (signal.SIGKILL, signal.SIGSTOP)
BODIES = [
    {"prompt": f"def f{i}(", "seed": i, "max_tokens": 150, "logprobs": 1, "extra_body": {"ignore_eos": True}}
    for i in range(8)
]
pytestmark = pytest.mark.skipif(len(usable_cores()) < 2, reason="ranks need a core each")


@pytest.fixture(scope="module")
def server(environ: dict[str, str]) -> Iterator[ServerProcess]:
    with ServerProcess(["--backend", "cpu", "--tensor-parallel-size", "2"], environ=environ) as started:
        yield started


def answer(client: openai.OpenAI, body: dict) -> list:
    chunks = client.completions.create(model=MODEL, stream=True, **body)
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    return [(c.text, c.logprobs and c.logprobs.token_logprobs, c.finish_reason) for c in choices]


def text(chunks: list) -> str:
    return "".join(chunk[0] for chunk in chunks)


def whole(chunks: list) -> tuple:
    """Text, log-probabilities and the end, however many tokens each event had."""
    return text(chunks), [value for chunk in chunks for value in chunk[1] or []], chunks[-1][2]


def children(pid: int) -> list[int]:
    """Processes that another one has started."""
    lists = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for found in lists for child in found]


def rank_pids(server: ServerProcess) -> list[int]:
    engines = server.engine_pids
    found = children(engines[0]) if engines and Path(f"/proc/{engines[0]}").exists() else []
    return [pid for pid in found if "cpu.ranks.worker" in Path(f"/proc/{pid}/cmdline").read_text()]


def test_the_answers_of_one_rank(server: ServerProcess, cpu_server: ServerProcess, connect: Connect) -> None:
    for body in BODIES[:3]:
        assert whole(answer(connect(server), body)) == whole(answer(connect(cpu_server), body))


def test_answers_survive_ranks_that_are_killed_and_stopped(server: ServerProcess, connect: Connect) -> None:
    client = connect(server)
    with ThreadPoolExecutor(len(BODIES)) as pool:
        expected = [text(found) for found in pool.map(lambda body: answer(client, body), BODIES)]
        for number in FAULTS:
            wait_until(lambda: metric(server.url, "firelane:replicas_up") == 1)
            (rank,) = rank_pids(server)
            generated = metric(server.url, "vllm:generation_tokens_total")
            deaths = metric(server.url, "firelane:engine_deaths_total")
            answers = [pool.submit(answer, client, body) for body in BODIES]
            wait_until(
                lambda before=generated: metric(server.url, "vllm:generation_tokens_total") > before + 50
            )
            os.kill(rank, number)
            wait_until(lambda before=deaths: metric(server.url, "firelane:engine_deaths_total") > before)
            assert [text(found.result()) for found in answers] == expected
    assert server.log.count("engine_failed error='rank 1 of the model ended (SIGKILL)'") == len(FAULTS)
