"""--weights changes how matrices lie in memory and nothing that a client can see."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from e2e_support import MODEL

from firelane.bench.server import ServerProcess

Connect = Callable[[ServerProcess], openai.OpenAI]
MODES = ("bf16", "lossless", "auto")
PROMPTS = ("def read_lines(path):\n    ", "class Stack:\n", "import os\n" * 40, "# TODO", "x = [", "return ")


@pytest.fixture(scope="module")
def servers(environ: dict[str, str]) -> Iterator[dict[str, ServerProcess]]:
    """One after another: the machine is small."""
    started: dict[str, ServerProcess] = {}
    environ = {**environ, "FIRELANE_LOG_LEVEL": "debug"}
    try:
        for mode in MODES:
            started[mode] = ServerProcess(["--weights", mode, "--max-num-seqs", "32"], environ=environ)
        yield started
    finally:
        for server in started.values():
            server.stop()


def answers(client: openai.OpenAI) -> list[Any]:
    """Return the answers to many requests at the same time: greedy and drawn, with log-probabilities."""

    def ask(index: int) -> Any:
        made = client.completions.create(
            model=MODEL,
            prompt=PROMPTS[index % len(PROMPTS)],
            max_tokens=8 + 3 * index,
            temperature=float(index % 2),
            seed=index,
            logprobs=3,
            extra_body={"ignore_eos": True},
        )
        return made.choices[0].model_dump()

    with ThreadPoolExecutor(18) as pool:
        return list(pool.map(ask, range(18)))


def test_answers_are_the_same_bit_for_bit(servers: dict[str, ServerProcess], connect: Connect) -> None:
    plain = answers(connect(servers["bf16"]))
    assert len({choice["text"] for choice in plain}) > 10
    for mode in MODES[1:]:
        assert answers(connect(servers[mode])) == plain


def weights_bytes(server: ServerProcess) -> int:
    found = re.search(r"engine_ready .* weights_bytes=(\d+)", server.log)
    assert found is not None
    return int(found[1])


def test_lossless_is_smaller(servers: dict[str, ServerProcess]) -> None:
    sizes = {mode: weights_bytes(server) for mode, server in servers.items()}
    assert sizes["lossless"] < 0.78 * sizes["bf16"]
    assert sizes["lossless"] <= sizes["auto"] <= sizes["bf16"]


def test_the_resolved_mode_is_in_the_log(servers: dict[str, ServerProcess]) -> None:
    for mode, server in servers.items():
        assert f"engine.weights = {mode}\n" in server.log
