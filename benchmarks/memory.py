"""Memory of gateway and engine beside weights and KV cache, after a load.

memory.py [MODEL] [--streams N]

Resident set size (RSS) of each process from /proc/PID/smaps: pages that both share count twice. Taken off the
engine's are the mappings of packed weights (files in the cache directory) and of the KV cache (anonymous
mappings of at least half the size that --kv-cache-gib asks for).
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from firelane import __version__
from firelane.bench.client import LoadClient, first_model
from firelane.bench.serve import ServeLoad, run_load
from firelane.bench.server import ServerProcess
from firelane.bench.table import format_table
from firelane.bench.workload import sharegpt_like, token_requests

MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)$")
MIB = 1 << 20


@dataclass(frozen=True)
class Mapping:
    name: str
    size_bytes: int
    rss_bytes: int


def read_mappings(text: str) -> list[Mapping]:
    """The text of /proc/PID/smaps."""
    found: list[Mapping] = []
    name, size = "", 0
    for line in text.splitlines():
        header = MAPPING.match(line)
        if header is not None:
            name = header[1]
        elif line.startswith("Size:"):
            size = int(line.split()[1]) << 10
        elif line.startswith("Rss:"):
            found.append(Mapping(name, size, int(line.split()[1]) << 10))
    return found


def split_engine(mappings: list[Mapping], cache_dir: Path, kv_bytes: int) -> tuple[int, int, int]:
    """RSS bytes of (weights, KV cache, all the rest)."""
    weights = [m for m in mappings if m.name.startswith(str(cache_dir)) and not m.name.endswith(".so")]
    large = [m for m in mappings if not m.name.startswith("/") and kv_bytes and m.size_bytes >= kv_bytes // 2]
    total = sum(m.rss_bytes for m in mappings)
    of_weights, of_kv = sum(m.rss_bytes for m in weights), sum(m.rss_bytes for m in large)
    return of_weights, of_kv, total - of_weights - of_kv


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--kv-cache-gib", type=float, default=1.0)
    arguments = parser.parse_args()
    command = [*([arguments.model] if arguments.model else []), "--kv-cache-gib", str(arguments.kv_cache_gib)]
    with tempfile.TemporaryDirectory() as scratch:
        cache_dir = Path(scratch)
        with ServerProcess(command, environ={**os.environ, "FIRELANE_CACHE_DIR": scratch}) as server:
            client = LoadClient(server.url, first_model(server.url))
            requests = token_requests(sharegpt_like(2 * arguments.streams, seed=0), seed=0, vocab_size=1000)
            run_load(client, requests, ServeLoad(concurrency=arguments.streams))
            gateway = sum(m.rss_bytes for m in read_mappings(smaps(server.gateway_pid)))
            engine = [m for pid in server.engine_pids for m in read_mappings(smaps(pid))]
    weights, kv, rest = split_engine(engine, cache_dir, int(arguments.kv_cache_gib * (1 << 30)))
    rows = [
        ["gateway", gateway],
        ["engine", rest],
        ["sum", gateway + rest],
        ["weights", weights],
        ["KV cache", kv],
    ]
    print(f"firelane {__version__}, Python {platform.python_version()}, {platform.platform()}\n")
    print(format_table(["part", "MiB"], [[str(name), f"{int(size) / MIB:.0f}"] for name, size in rows]))


def smaps(pid: int) -> str:
    return Path(f"/proc/{pid}/smaps").read_text()


if __name__ == "__main__":
    main()
