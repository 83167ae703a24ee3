"""A tier on a drive under a real `openai` client: however an engine ends, the next one has its pages."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from e2e_support import MODEL, TIMEOUT_S, metric, wait_until

from firelane.backends.cpu.ranks.interconnect import usable_cores
from firelane.bench.server import ServerProcess

PROMPT = "import os\n\ndef walk(path):\n    for name in os.listdir(path):\n" * 30


def ask(server: ServerProcess, prompt: str = PROMPT) -> Any:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        return client.completions.create(model=MODEL, prompt=prompt, max_tokens=12, seed=3)


def count(server: ServerProcess, name: str) -> float:
    return metric(server.url, f"firelane:{name}")


def written(server: ServerProcess, prompt_tokens: int) -> bool:
    """All pages of a prompt are on the drive, as the idle engine tells."""
    return count(server, "kv_disk_pages") >= prompt_tokens // 16


def by_tier(answer: Any) -> dict[str, int]:
    details = answer.usage.prompt_tokens_details
    assert details.cached_tokens == sum(details.cached_tokens_by_tier.values())
    return details.cached_tokens_by_tier


def test_pages_outlive_engines(environ: dict[str, str], tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    sizes = ["--kv-disk", str(tmp_path / "pages"), "--kv-disk-size", "0.05", "--kv-disk-key-file", str(key)]
    with ServerProcess(sizes, environ=environ) as server:
        first = ask(server)
        whole = first.usage.prompt_tokens // 16 * 16
        assert first.usage.prompt_tokens_details.cached_tokens == 0
        wait_until(lambda: written(server, whole))
        (pid,) = server.engine_pids
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: count(server, "engine_deaths_total") > 0)
        second = ask(server)
        assert second.choices[0].text == first.choices[0].text
        assert by_tier(second)["disk"] > 0  # what has come in the time that a prompt waits for it
        assert count(server, "kv_disk_hits_total") >= by_tier(second)["disk"] // 16
    with ServerProcess([*sizes, "--kv-offloading-size", "0.05"], environ=environ) as server:
        third = ask(server)
        assert third.choices[0].text == first.choices[0].text
        read = by_tier(third)["disk"]
        assert read > 0
        asked = {"tenant": ""}
        told = httpx.post(f"{server.url}/admin/tenants/forget", json=asked, timeout=TIMEOUT_S).json()
        assert (told["engines"], told["silent"]) == (1, 0)
        assert told["pages"] >= whole // 16 - 1 + read // 16
        last = ask(server)
        assert last.choices[0].text == first.choices[0].text
        assert last.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.skipif(len(usable_cores()) < 2, reason="ranks need a core each")
def test_pages_of_ranks_outlive_them(environ: dict[str, str], tmp_path: Path) -> None:
    tiers = ["--kv-offloading-size", "0.05", "--kv-disk", str(tmp_path / "pages"), "--kv-disk-size", "0.05"]
    ranks = ["--backend", "cpu", "--tensor-parallel-size", "2"]
    with ServerProcess([*ranks, *tiers], environ=environ) as server:
        first = ask(server)
        wait_until(lambda: written(server, first.usage.prompt_tokens // 16 * 16))
        (pid,) = server.engine_pids
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: count(server, "engine_deaths_total") > 0)
        second = ask(server)
        assert second.choices[0].text == first.choices[0].text
        assert by_tier(second)["disk"] > 0
