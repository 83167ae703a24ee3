"""Memory of the gateway that stays after large bodies: before, after each kind, and once more of each.

large_bodies.py [MODEL] [--mib N] [--settle-s S]

Resident set size of the gateway's process and of its template processes, S seconds after the last answer. The
bodies are refused, most of them for their length in tokens: what they cost is reading, decoding, rendering.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from firelane.bench.server import ServerProcess, descendants
from firelane.bench.table import format_table

MIB = 1 << 20
WORDS = "the quick brown fox jumps over the lazy dog "


def one_message(size: int) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": WORDS * (size // len(WORDS))}]}


def many_messages(size: int) -> dict[str, object]:
    message = {"role": "user", "content": WORDS * 20}
    return {"messages": [message] * min(60_000, size // 950)}


def token_ids(size: int) -> dict[str, object]:
    return {"prompt": [i % 1000 for i in range(min(900_000, size // 5))]}


def wide_schema(size: int) -> dict[str, object]:
    fields = {f"field_{i}": {"type": "string"} for i in range(min(100_000, size // 40))}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"properties": fields}}}
    return {"messages": [{"role": "user", "content": "x"}], "response_format": form}


KINDS: dict[str, tuple[str, Callable[[int], dict[str, object]]]] = {
    "one long message": ("/v1/chat/completions", one_message),
    "one long item of responses": ("/v1/responses", lambda size: {"input": WORDS * (size // len(WORDS))}),
    "many messages": ("/v1/chat/completions", many_messages),
    "token ids": ("/v1/completions", token_ids),
    "a wide schema": ("/v1/chat/completions", wide_schema),
}


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def templates(server: ServerProcess) -> list[int]:
    """Processes that render."""
    own = (server.gateway_pid, *server.engine_pids)
    return [pid for pid in descendants(server.gateway_pid) if pid not in own]


def post(url: str, path: str, body: bytes) -> int:
    """The answer's status."""
    request = urllib.request.Request(url + path, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as reply:
            reply.read()
            return reply.status
    except urllib.error.HTTPError as error:
        error.read()
        return error.code


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="default: the embedded model")
    parser.add_argument("--mib", type=int, default=24, metavar="N", help="of a body (default: %(default)s)")
    parser.add_argument("--settle-s", type=float, default=3.0, metavar="S", help="default: %(default)s")
    options = parser.parse_args()
    rows: list[list[str]] = []
    with ServerProcess([*filter(None, [options.model]), "--backend", "null"]) as server:
        gateway = server.gateway_pid
        post(server.url, "/v1/chat/completions", json.dumps(one_message(100)).encode())

        def row(name: str, status: str) -> None:
            figures = [resident_mib(gateway), sum(map(resident_mib, templates(server)))]
            rows.append([name, status, *(f"{figure:.0f}" for figure in figures)])
            print(*rows[-1], sep=", ", file=sys.stderr, flush=True)

        row("before", "")
        for _ in range(2):
            for name, (path, make) in KINDS.items():
                status = post(server.url, path, json.dumps(make(options.mib * MIB)).encode())
                time.sleep(options.settle_s)
                row(name, str(status))
    print(format_table(["after", "status", "gateway MiB", "template processes MiB"], rows))


if __name__ == "__main__":
    main()
