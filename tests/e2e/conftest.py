"""Real `firelane serve` processes on the embedded model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from firelane.bench.server import ServerProcess


@pytest.fixture(scope="session")
def environ(cache_dir: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FIRELANE_")}
    return {**kept, "FIRELANE_CACHE_DIR": str(cache_dir)}


@pytest.fixture(scope="session")
def null_server(environ: dict[str, str]) -> Iterator[ServerProcess]:
    with ServerProcess(["--backend", "null"], environ=environ) as server:
        yield server


@pytest.fixture(scope="session")
def cpu_server(environ: dict[str, str]) -> Iterator[ServerProcess]:
    """For tests that leave it as they found it."""
    with ServerProcess(["--max-num-seqs", "32"], environ=environ) as server:
        yield server


@pytest.fixture
def connect() -> Iterator[Callable[[ServerProcess], openai.OpenAI]]:
    """Makes OpenAI clients that do not retry; closes them at the end."""
    made: list[openai.OpenAI] = []

    def make(server: ServerProcess) -> openai.OpenAI:
        made.append(openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=600))
        return made[-1]

    yield make
    for client in made:
        client.close()
