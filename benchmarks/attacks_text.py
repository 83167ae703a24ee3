"""Requests whose text, template or grammar means harm: what each takes of memory, and of others' patience.

    python benchmarks/attacks_text.py [--only PART ...] [--backend null|cpu]

A real server on the embedded model. While each attack runs, another client, of another address, sends a short
chat every 10 ms; in attacks by many grammars, one with a small grammar that the server has not seen before.
Printed are the attack's statuses and seconds, by how much the highest resident memory of the gateway, of the
engines and of the processes that render templates exceeds that before, and the 99th percentile and the
maximum of the other client's times.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from firelane.bench.server import ServerProcess, descendants

EMBEDDED = Path(__file__).parents[1] / "firelane" / "models" / "embedded"
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
PAUSE_S = 0.01
ATTACKER, OTHER = "127.0.0.2", "127.0.0.1"
MIB = 1 << 20
Request = tuple[str, dict[str, Any]]


def text_of(megabytes: float) -> str:
    return "a b" * int(megabytes * MIB / 3)


def chat(content: str = "hi", **fields: Any) -> Request:
    return CHAT, {"messages": [{"role": "user", "content": content}], "max_tokens": 4, **fields}


def tools(count: int, schema_bytes: int) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {"a": {"enum": ["x" * schema_bytes]}}}
    return [
        {"type": "function", "function": {"name": f"t{i}", "parameters": parameters}} for i in range(count)
    ]


def completion(**fields: Any) -> Request:
    return COMPLETION, {"prompt": "hi", "max_tokens": 60, **fields}


ATTACKS: dict[str, Callable[[], list[Request]]] = {
    "24 MiB prompt, three": lambda: [completion(prompt=text_of(24))] * 3,
    "24 MiB of one letter": lambda: [completion(prompt="a" * (24 * MIB))],
    "24 MiB of spaces": lambda: [completion(prompt=" " * (24 * MIB))],
    "24 MiB, truncated": lambda: [completion(prompt=text_of(24), truncate_prompt_tokens=100)],
    "1.9 MiB of spaces": lambda: [completion(prompt=" " * int(1.9 * MIB))],
    "24 MiB chat, three": lambda: [chat(text_of(24))] * 3,
    "24 MiB responses": lambda: [("/v1/responses", {"input": text_of(24)})],
    "24 MiB embedding": lambda: [("/v1/embeddings", {"input": text_of(24)})],
    "2048 embeddings of 12 KiB": lambda: [("/v1/embeddings", {"input": [text_of(12 / 1024)] * 2048})],
    "24 MiB Workers AI": lambda: [
        ("/client/v4/accounts/a/ai/run/firelane-embedded", {"prompt": text_of(24)})
    ],
    "31 MiB tokenize": lambda: [("/tokenize", {"prompt": text_of(31)})],
    "60000 messages": lambda: [
        (CHAT, {"messages": [{"role": "user", "content": "a"}] * 60_000, "max_tokens": 1})
    ],
    "128 tools of 60 KB, n 128": lambda: [
        chat(tools=tools(128, 60_000), tool_choice="required", n=128),
        chat(tools=tools(128, 60_000), n=128),
    ],
    "2000 token prompt, n 128": lambda: [completion(prompt=[50] * 1980, n=128)],
    "states, ten times": lambda: [completion(guided_regex=r"(((a{1,100}){1,100}){1,100}){1,100}")] * 10,
    "many words": lambda: [completion(guided_regex="(" + r"\w?" * 300 + "){2,50}")] * 3,
    "16 long stop strings": lambda: [
        chat(stop=["a" * 1023 + chr(98 + i) for i in range(16)], max_tokens=500)
    ],
}


def costly(number: int) -> str:
    """A grammar that takes all the time that it may have: each word doubles the states of a lexeme."""
    words = " ".join(f'& ~(/.*/ "{i}" /.*/)' for i in range(24))
    return f'start: S | "{number}"\nS: /.*/ {words}'


GRAMMARS: dict[str, Callable[[], list[Request]]] = {
    "24 costly grammars": lambda: [completion(guided_grammar=costly(i)) for i in range(24)],
    "200 small grammars": lambda: [completion(guided_regex=f"{i}[a-z]{{5}}") for i in range(200)],
}
"""While the other client wants grammars, too."""
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
LONG = "{% set ns = namespace(t='ab') %}{% for i in range(22) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}"
TEMPLATES = {
    "template: loop": LOOP,
    "template: in": LONG + "{% for i in range(10000) %}{% if 'ac' in ns.t %}{% endif %}{% endfor %}",
    "template: wide tojson": "{{ [[[[1]]]] | tojson(indent=100000000 * (messages | length)) }}",
    "template: nested lists": "{% set ns = namespace(t=['x' * 999]) %}{% for i in range(6) %}"
    "{% set ns.t = [ns.t] * 1000 %}{% endfor %}{{ ns.t }}",
    "template: memory": "{% for i in range(24) %}{{ 'ab' * (2 ** i) * (messages | length) }}{% endfor %}",
}
"""For messages whose first one is "harm"."""


class Memory:
    """Resident memory of a server's processes, by what they are."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    def pids(self) -> dict[str, list[int]]:
        engines = self._server.engine_pids
        below = descendants(self._server.gateway_pid)
        others = [pid for pid in below if pid not in engines]
        return {"gateway": [self._server.gateway_pid], "engine": engines, "renderers": others}

    def now(self) -> dict[str, int]:
        """Bytes."""
        return {name: sum(map(_resident, pids)) for name, pids in self.pids().items()}


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


class Watch:
    """Until it is left: the highest memory, and the times of another client's requests."""

    def __init__(self, url: str, memory: Memory, others: Iterator[Request]) -> None:
        self._url, self._memory, self._others = url, memory, others
        self._ended = threading.Event()
        self.before = memory.now()
        self.most = dict(self.before)
        self.times_s: list[float] = []
        self._threads = [threading.Thread(target=work) for work in (self._look, self._ask)]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _look(self) -> None:
        while not self._ended.wait(PAUSE_S):
            for name, value in self._memory.now().items():
                self.most[name] = max(self.most[name], value)

    def _ask(self) -> None:
        own = httpx.HTTPTransport(local_address=OTHER)
        with httpx.Client(base_url=self._url, timeout=120, transport=own, trust_env=False) as http:
            for path, body in self._others:
                began_s = time.perf_counter()
                http.post(path, json=body).raise_for_status()
                self.times_s.append(time.perf_counter() - began_s)
                if self._ended.wait(PAUSE_S):
                    return

    def grown(self, name: str) -> float:
        """MiB."""
        return (self.most[name] - self.before[name]) / MIB

    def quantile_ms(self, share: float) -> float:
        ordered = sorted(self.times_s)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def attack(url: str, requests: list[Request]) -> Counter[str]:
    """All at once; the statuses."""
    found: Counter[str] = Counter()

    def send(path: str, data: bytes) -> None:
        try:
            headers = {"content-type": "application/json"}
            with httpx.Client(transport=httpx.HTTPTransport(local_address=ATTACKER), timeout=120) as http:
                answer = http.post(url + path, content=data, headers=headers)
            found[str(answer.status_code)] += 1
        except httpx.TransportError as error:
            found[type(error).__name__] += 1

    encoded = [(path, json.dumps(body).encode()) for path, body in requests]
    threads = [threading.Thread(target=send, args=one) for one in encoded]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def small_grammars() -> Iterator[Request]:
    """Yield small requests of another client, each with a grammar that no request had before."""
    return (completion(max_tokens=4, guided_regex=f"{i}[0-9]{{3}}") for i in itertools.count())


def measure(server: ServerProcess, name: str, requests: list[Request], others: Iterator[Request]) -> None:
    attack(server.url, [next(others), chat("warm", tools=tools(1, 10))])
    with Watch(server.url, Memory(server), others) as watch:
        began_s = time.perf_counter()
        statuses = attack(server.url, requests)
        lasted_s = time.perf_counter() - began_s
    shown = " ".join(f"{status}x{count}" for status, count in sorted(statuses.items()))
    sizes = " ".join(f"{watch.grown(kind):9.0f}" for kind in ("gateway", "engine", "renderers"))
    times = f"{watch.quantile_ms(0.99):9.0f} {watch.quantile_ms(1.0):8.0f}"
    print(f"{name:28} {shown:16} {lasted_s:7.2f} {sizes} {times}", flush=True)


@contextmanager
def model_with(template: str) -> Iterator[Path]:
    """The embedded model with another template."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        shutil.copytree(EMBEDDED, path)
        whole = "{% if messages[0].content == 'harm' %}" + template + "{% endif %}{{ messages[0].content }}"
        (path / "chat_template.jinja").write_text(whole)
        yield path


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="*", default=[""], metavar="PART", help="parts of names of attacks")
    parser.add_argument("--backend", default="null")
    options = parser.parse_args()
    arguments = ["--backend", options.backend]
    chosen = [n for n in (*ATTACKS, *GRAMMARS, *TEMPLATES) if any(part in n for part in options.only)]
    heads = f"{'gateway':>9} {'engine':>9} {'renderers':>9} {'p99 ms':>9} {'max ms':>8}"
    print(f"{'attack':28} {'status':16} {'s':>7} {heads}   (MiB beside what was there; others' times)")
    if plain := [name for name in chosen if name not in TEMPLATES]:
        with ServerProcess(arguments) as server:
            for name in plain:
                others = small_grammars() if name in GRAMMARS else itertools.repeat(chat())
                measure(server, name, {**ATTACKS, **GRAMMARS}[name](), others)
    for name in (name for name in chosen if name in TEMPLATES):
        with model_with(TEMPLATES[name]) as path, ServerProcess([str(path), *arguments]) as server:
            # Other chats of this model wait for its template; all else does not.
            measure(server, name, [chat("harm")] * 3, itertools.repeat(completion(max_tokens=4)))


if __name__ == "__main__":
    main()
