"""Costs of models that come and go: standby to first token, memory given back, the gateway's cost a token
beside other models, and traffic over more models than there is memory for, with engines that are killed.

    python benchmarks/node.py wake MODEL      first token warm and from standby, and the memory of the engine
    python benchmarks/node.py cold MODEL      first token from standby, weights on the drive alone (root)
    python benchmarks/node.py cost            CPU time of the gateway a streamed token: 1 model, 12 models
    python benchmarks/node.py traffic         12 models, memory for 3, Zipf's law, kills
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import mmap
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import numpy as np

from firelane.bench.server import ServerProcess

PROMPT = "The quick brown fox jumps over the lazy dog and"
WAKES, LONG_TOKENS = 12, 5000
COST_TOKENS, COST_STREAMS, COST_TURNS = 1000, 16, 9
LARGE_BYTES = 2 << 20
OBJECTS_IN_HEAP = {"PYTHONMALLOC": "malloc"}
MADV_PAGEOUT, PROCESS_MADVISE = 21, 440
COLD_TURNS, READ_BYTES, READERS = 5, 8 << 20, 4
MODELS, FIT = 12, 3


@asynccontextmanager
async def node(
    text: str, environ: dict[str, str] | None = None
) -> AsyncIterator[tuple[ServerProcess, httpx.AsyncClient]]:
    """A running node of this file. environ: beside this process's."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "node.toml"
        path.write_text(text)
        with ServerProcess([str(path)], command="node", environ=os.environ | (environ or {})) as server:
            async with httpx.AsyncClient(base_url=server.url, timeout=600, trust_env=False) as client:
                yield server, client


async def first_token_s(
    client: httpx.AsyncClient, model: str, prompt: str = PROMPT, tokens: int = 2
) -> float:
    """Raises what went wrong."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    began_s, first_s = time.perf_counter(), 0.0
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            raise RuntimeError((await answer.aread()).decode())
        last = ""
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                first_s = first_s or time.perf_counter() - began_s
            last = line or last
    if last != "data: [DONE]":
        raise RuntimeError(last)
    return first_s


def buffer_bytes(pid: int) -> int:
    """Memory behind the large mappings that no file backs: KV cache, states and buffers, not the heap. The
    interpreter's objects are in mappings of their own, which look the same, but for OBJECTS_IN_HEAP."""
    found, counts = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            first, _, last = words[0].partition("-")
            counts = len(words) == 5 and int(last, 16) - int(first, 16) >= LARGE_BYTES
        elif counts and words[0] == "Rss:":
            found += int(words[1]) << 10
    return found


def milliseconds(values: list[float]) -> str:
    return f"median {statistics.median(values) * 1e3:.0f} ms, worst {max(values) * 1e3:.0f} ms"


async def wake(model: str) -> None:
    text = f'[node]\nmin_residence_s = 0\n[models.m]\nsource = "{model}"\nload = "start"\nkv_cache_gib = 2\n'
    async with node(text, OBJECTS_IN_HEAP) as (server, client):
        (pid,) = server.engine_pids
        warm = [await first_token_s(client, "m") for _ in range(WAKES)]
        cold: list[float] = []
        for _ in range(WAKES):
            (await client.post("/admin/models/sleep", json={"model": "m"})).raise_for_status()
            cold.append(await first_token_s(client, "m"))
        await first_token_s(client, "m", " word" * LONG_TOKENS)
        used = buffer_bytes(pid)
        (await client.post("/admin/models/sleep", json={"model": "m"})).raise_for_status()
        left = buffer_bytes(pid)
    print(f"first token, model ready: {milliseconds(warm)}")
    print(f"first token, from standby: {milliseconds(cold)}")
    print(f"KV cache and buffers after a prompt of {LONG_TOKENS} words: {used / 2**20:.1f} MiB of memory,")
    print(f"in standby {left / 2**20:.1f} MiB: {1 - left / used:.1%} given back")


async def cold(model: str) -> None:
    """Each turn: the drive's time for the packed weights, read by some threads, and then the first token,
    both with no page of them in memory."""
    text = f'[node]\nmin_residence_s = 0\n[models.m]\nsource = "{model}"\nload = "start"\nkv_cache_gib = 1\n'
    ratios: list[float] = []
    async with node(text) as (server, client):
        (pid,) = server.engine_pids
        for _ in range(COLD_TURNS):
            await first_token_s(client, "m")
            (await client.post("/admin/models/sleep", json={"model": "m"})).raise_for_status()
            path, nbytes = evict(pid)
            drive_s = read_s(path)
            evict(pid)
            kept = resident_share(path)
            token_s = await first_token_s(client, "m")
            ratios.append(token_s / drive_s)
            print(
                f"{nbytes / 1e9:.2f} GB, {kept:.0%} of it in memory: drive {drive_s:.2f} s, "
                f"first token {token_s:.2f} s, {ratios[-1]:.2f}x"
            )
    print(f"first token over the drive: median {statistics.median(ratios):.2f}x")


def evict(pid: int) -> tuple[Path, int]:
    """Take the pages of an engine's packed weights out of its memory and out of the page cache. Raises
    OSError."""
    libc, pidfd, path, nbytes = ctypes.CDLL(None, use_errno=True), os.pidfd_open(pid), Path(), 0
    try:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            words = line.split()
            if not words[-1].endswith(".weights"):
                continue
            path = Path(words[-1])
            first, last = (int(one, 16) for one in words[0].split("-"))
            nbytes += last - first
            part = (ctypes.c_size_t * 2)(first, last - first)
            if libc.syscall(PROCESS_MADVISE, pidfd, part, 1, MADV_PAGEOUT, 0) < 0:
                raise OSError(ctypes.get_errno(), "process_madvise")
    finally:
        os.close(pidfd)
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path, nbytes


def resident_share(path: Path) -> float:
    """Return the share of the file's pages that are in memory."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        found = np.zeros(-(-len(memory) // mmap.PAGESIZE), np.uint8)
        at, nbytes = np.frombuffer(memory, np.uint8).ctypes.data, ctypes.c_size_t(len(memory))
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.mincore(ctypes.c_void_p(at), nbytes, ctypes.c_void_p(found.ctypes.data))
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return float((found & 1).mean())


def read_s(path: Path) -> float:
    with path.open("rb") as file, ThreadPoolExecutor(READERS) as pool:
        size, began_s = path.stat().st_size, time.perf_counter()
        list(pool.map(lambda at: len(os.pread(file.fileno(), READ_BYTES, at)), range(0, size, READ_BYTES)))
        return time.perf_counter() - began_s


def cpu_s(pid: int) -> float:
    """By the process's own clock (clock_getcpuclockid(3)): what /proc tells is in ticks of 10 ms."""
    return time.clock_gettime(~pid << 3 | 2)


def ready_models(number: int) -> str:
    models = "".join(f'[models.m{i}]\nload = "start"\n' for i in range(number))
    return f'[engine]\nbackend = "null"\nmax_num_seqs = 32\nkv_cache_gib = 0.02\n{models}'


async def cost_a_token(server: ServerProcess, client: httpx.AsyncClient) -> float:
    """Microseconds of the gateway, for streams of one model."""
    before = cpu_s(server.gateway_pid)
    streams = (first_token_s(client, "m0", tokens=COST_TOKENS) for _ in range(COST_STREAMS))
    await asyncio.gather(*streams)
    return (cpu_s(server.gateway_pid) - before) / (COST_STREAMS * COST_TOKENS) * 1e6


async def cost() -> None:
    """The same streams of the same model, alone or beside others that are ready."""
    async with node(ready_models(1)) as one, node(ready_models(MODELS)) as many:
        await cost_a_token(*one), await cost_a_token(*many)
        pairs = [(await cost_a_token(*one), await cost_a_token(*many)) for _ in range(COST_TURNS)]
    for alone, beside in pairs:
        print(f"1 model {alone:.1f} us a token, {MODELS} models {beside:.1f} us")
    print(f"{MODELS} models over one: median {statistics.median(b / a for a, b in pairs):.3f}")


async def traffic(seconds: float, clients: int) -> None:
    models = "".join(f"[models.m{i}]\nmax_num_seqs = {8 + i}\n" for i in range(MODELS))
    engine = f'[engine]\nbackend = "cpu"\nkv_cache_gib = 0.1\nthreads = 1\n{models}'
    text = f"[node]\nbudget_gib = {0.125 * FIT + 0.04 * MODELS:.2f}\nmin_residence_s = 1\n{engine}"
    draw, failed = random.Random(1), list[str]()
    times: dict[str, list[float]] = {"ready": [], "cold": []}
    async with node(text) as (server, client):
        ends_s, kills = time.monotonic() + seconds, 0

        async def ask() -> None:
            while time.monotonic() < ends_s:
                name = f"m{min(int(draw.paretovariate(1.0)) - 1, MODELS - 1)}"
                state = await state_of(client, name)
                try:
                    took_s = await first_token_s(client, name, tokens=8)
                    times["ready" if state == "ready" else "cold"].append(took_s)
                except (RuntimeError, httpx.HTTPError) as error:
                    failed.append(f"{name}: {error}")

        async def kill() -> None:
            nonlocal kills
            while time.monotonic() < ends_s:
                await asyncio.sleep(5)
                pids = server.engine_pids
                if pids:
                    os.kill(draw.choice(pids), signal.SIGKILL)
                    kills += 1

        await asyncio.gather(kill(), *(ask() for _ in range(clients)))
    total = sum(map(len, times.values()))
    print(f"{total} requests of {clients} clients in {seconds:g} s, {kills} kills: {len(failed)} failed")
    for line in failed[:5]:
        print(f"  {line}")
    for name, found in times.items():
        found.sort()
        if found:
            p99 = found[min(len(found) - 1, int(len(found) * 0.99))]
            print(f"{name}: {len(found)}, first token p50 {found[len(found) // 2]:.3f} s, p99 {p99:.3f} s")


async def state_of(client: httpx.AsyncClient, name: str) -> str:
    models = json.loads((await client.get("/admin/models")).text)["models"]
    return next(one["state"] for one in models if one["name"] == name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("wake", "cold", "cost", "traffic"))
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--clients", type=int, default=4)
    arguments = parser.parse_args()
    if arguments.what == "wake":
        asyncio.run(wake(str(Path(arguments.model).resolve())))
    elif arguments.what == "cold":
        asyncio.run(cold(str(Path(arguments.model).resolve())))
    elif arguments.what == "cost":
        asyncio.run(cost())
    else:
        asyncio.run(traffic(arguments.seconds, arguments.clients))


if __name__ == "__main__":
    main()
