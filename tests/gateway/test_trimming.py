"""Memory is given back after large bodies, not after each of many."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from firelane.gateway import bodies
from firelane.gateway.bodies import Trimmer
from firelane.gateway.config import HttpLimits
from firelane.heap import map_large_blocks, trim_heap

LARGE = {"messages": [{"role": "user", "content": "x" * (200 << 10)}]}


def test_many_bodies_few_trims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "SOON_S", 0.0)
    monkeypatch.setattr(bodies, "LATER_S", 0.01)

    async def run() -> int:
        loop, times = asyncio.get_running_loop(), 0
        second = asyncio.Event()

        def trim() -> None:
            nonlocal times
            times += 1
            if times == 2:
                loop.call_soon_threadsafe(second.set)

        trimmer = Trimmer(trim)
        for _ in range(100):
            trimmer.large_body()
        await second.wait()
        return times

    assert asyncio.run(run()) == 2


def test_closing_ends_it() -> None:
    async def run() -> None:
        trimmer = Trimmer()
        trimmer.large_body()
        trimmer.close()
        trimmer.close()
        assert trimmer._due == {}

    asyncio.run(run())


@pytest.mark.parametrize(("body", "due"), [(LARGE, 2), ({"messages": []}, 0)], ids=["large", "small"])
def test_large_bodies_are_told(make_service, monkeypatch, body, due):
    monkeypatch.setattr(bodies, "SOON_S", 3600.0)
    service = make_service(limits=HttpLimits(body_bytes=1 << 20))
    service.http.post("/v1/chat/completions", json=body)
    assert len(service.gateway.services.bodies.trimmer._due) == due


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_memory_goes_back_to_the_system() -> None:
    program = (
        "from firelane.heap import trim_heap\n"
        "import re\n"
        "rss = lambda: int(re.search(r'VmRSS:\\s+(\\d+)', open('/proc/self/status').read())[1]) >> 10\n"
        "kept = [bytes([i % 256]) * 3000 for i in range(30000)]\n"
        "del kept[:-1]\n"
        "before = rss()\n"
        "trim_heap()\n"
        "print(before, rss())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before - after > 50


def test_anywhere_and_any_number_of_times() -> None:
    for _ in range(2):
        map_large_blocks()
        trim_heap()
