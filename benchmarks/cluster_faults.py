"""Faults of engines with roles, under load: no request may fail, and each answer has the bytes that it has
without faults.

    python benchmarks/cluster_faults.py [MODEL] [--events 50] [--streams 6] [--backend null]

Each event kills (SIGKILL) or stops (SIGSTOP) a random engine of a server with two engines for prefill and two
for decode while streams run, and waits until all engines serve again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import httpx

from firelane.bench.client import first_model
from firelane.bench.server import ServerProcess

PROMPTS = 12
WAIT_S = 120.0


class Streams:
    """Threads that ask for the same few prompts over and over. expected: the first answer to each."""

    def __init__(self, url: str, model: str, tokens: int) -> None:
        self._url, self._model, self._tokens = url, model, tokens
        self.expected: dict[int, str] = {}
        self.ended = Counter[str]()
        self.failures: list[str] = []
        self._stops = threading.Event()
        self._threads: list[threading.Thread] = []

    def ask(self, client: httpx.Client, number: int) -> str:
        body = {
            "model": self._model,
            "prompt": f"# {number}\n" + "def f(x):\n    return x + 1\n" * 40,
            "max_tokens": self._tokens,
            "seed": number,
            "ignore_eos": True,
            "stream": True,
        }
        parts: list[str] = []
        with client.stream("POST", f"{self._url}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise RuntimeError(event["error"]["message"])
                    parts += [choice["text"] for choice in event["choices"]]
        return "".join(parts)

    def start(self, count: int) -> None:
        with httpx.Client(timeout=WAIT_S) as client:
            self.expected = {number: self.ask(client, number) for number in range(PROMPTS)}
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stops.set()
        for thread in self._threads:
            thread.join()

    def _run(self, first: int) -> None:
        number = first
        with httpx.Client(timeout=WAIT_S) as client:
            while not self._stops.is_set():
                number = (number + 1) % PROMPTS
                try:
                    same = self.ask(client, number) == self.expected[number]
                    self.ended["same" if same else "other bytes"] += 1
                except (httpx.HTTPError, RuntimeError) as error:
                    self.ended["failed"] += 1
                    self.failures.append(f"{type(error).__name__}: {error}")


def serving(url: str) -> list[str]:
    found = httpx.get(f"{url}/admin/engines", timeout=WAIT_S).json()["engines"]
    return [one["name"] for one in found if one["state"] == "ready"]


def counter(url: str, name: str) -> int:
    lines = httpx.get(f"{url}/metrics", timeout=WAIT_S).text.splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(f"firelane:{name}_total"))


def until_all_serve(url: str, engines: int, gone: int) -> None:
    ends_s = time.monotonic() + WAIT_S
    while Path(f"/proc/{gone}").exists() or len(serving(url)) < engines:
        if time.monotonic() > ends_s:
            raise TimeoutError("the engines do not come back")
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--streams", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--backend", default="null")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    options = ["--backend", arguments.backend, "--prefill", "2", "--decode", "2", "--engine-timeout", "3"]
    rng, events = random.Random(arguments.seed), Counter[str]()
    began_s = time.monotonic()
    with ServerProcess([*([arguments.model] if arguments.model else []), *options]) as server:
        streams = Streams(server.url, first_model(server.url), arguments.tokens)
        until_all_serve(server.url, 4, 0)
        streams.start(arguments.streams)
        for _ in range(arguments.events):
            pid = rng.choice(sorted(server.engine_pids))
            role = "prefill" if b'"role":"prefill"' in Path(f"/proc/{pid}/cmdline").read_bytes() else "decode"
            fault = rng.choice([signal.SIGKILL, signal.SIGSTOP])
            time.sleep(rng.uniform(0.0, 0.5))
            os.kill(pid, fault)
            events[f"{fault.name} of an engine for {role}"] += 1
            until_all_serve(server.url, 4, pid)
            print(f"{sum(events.values())} events, requests: {dict(streams.ended)}", flush=True)
        streams.stop()
        counters = {
            name: counter(server.url, name) for name in ("handed_over", "sequences_resumed", "kv_pulls_ok")
        }
    for what, count in sorted(events.items()):
        print(f"{what:36s} {count}")
    print(f"requests: {dict(streams.ended)} in {time.monotonic() - began_s:.0f} s")
    print(f"counters of the server: {counters}")
    for failure in sorted(set(streams.failures)):
        print(failure)


if __name__ == "__main__":
    main()
