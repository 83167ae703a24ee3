"""The cost of attacks on the gateway: growth of its memory, and how long other clients wait meanwhile.

    python benchmarks/attacks.py [ATTACK ...] [--seconds S] [--connections N]

The server runs on the null backend, with keys. Each attack is a process of its own with N connections that
begin again as soon as they are refused; a client of another tenant asks for eight tokens all the while.
Prints one row an attack: what was sent and answered, MiB that the gateway grew by at most, p50, p99 and worst
wait of the client.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from host_cost import resident_mib

from firelane.bench.server import ServerProcess
from firelane.gateway.tenants.keyfile import hashed

KEY, OTHER_KEY = "fl-attacks-0123456789abcdef", "fl-others-0123456789abcdef"
TENANTS = {"attacker": KEY, "other": OTHER_KEY}
PIECE = 1 << 18
HEAD = b"POST %b HTTP/1.1\r\nhost: localhost\r\n%b"
AUTHORIZATION = b"authorization: Bearer " + KEY.encode() + b"\r\n"
OTHERS = AUTHORIZATION.replace(KEY.encode(), OTHER_KEY.encode())
CHUNKED = HEAD % (b"/v1/completions", b"transfer-encoding: chunked\r\n\r\n")
GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
Bytes = Callable[[], Iterator[bytes]]


def endless(head: bytes, piece: bytes) -> Bytes:
    """A request that never ends."""

    def make() -> Iterator[bytes]:
        yield head
        more = piece * max(1, PIECE // len(piece))
        while True:
            yield more

    return make


def posted(path: bytes, make_body: Callable[[], bytes], *, key: bool = True) -> Bytes:
    """One whole request."""

    def make() -> Iterator[bytes]:
        body = make_body()
        yield HEAD % (path, (AUTHORIZATION if key else b"") + b"content-length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), PIECE):
            yield body[start : start + PIECE]

    return make


def chat(messages: list[dict[str, str]], **fields: int) -> bytes:
    return json.dumps({"messages": messages, "max_tokens": 1, **fields}).encode()


def message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


ATTACKS: dict[str, Bytes] = {
    "no key: trailers without end": endless(CHUNKED + b"0\r\na: ", b"x"),
    "no key: a header without end": endless(GET[:-2] + b"a: ", b"x"),
    "no key: headers without end": endless(GET[:-2], b"a: b\r\n"),
    "no key: chunk extensions": endless(CHUNKED, b"1;" + b"x" * 200 + b"\r\nx\r\n"),
    "no key: a body of 30 MB": posted(b"/v1/completions", lambda: b" " * 30_000_000, key=False),
    "no key: pages that are never read": endless(b"", GET),
    "one text of 30 MB": posted(b"/v1/chat/completions", lambda: chat([message("x " * 15_000_000)])),
    "one text of 30 MB to count": posted(
        b"/tokenize", lambda: json.dumps({"prompt": "x " * 15_000_000}).encode()
    ),
    "65,536 messages": posted(b"/v1/chat/completions", lambda: chat([message("hi")] * 65_536)),
    "65,536 messages of 450 characters": posted(
        b"/v1/chat/completions", lambda: chat([message("x " * 225)] * 65_536)
    ),
    "65,536 messages, truncated": posted(
        b"/v1/chat/completions", lambda: chat([message("x " * 225)] * 65_536, truncate_prompt_tokens=100)
    ),
    "65,536 messages, an unknown field": posted(
        b"/v1/chat/completions", lambda: chat([message("x " * 225)] * 65_536, unknown=1)
    ),
    "1,000 prompts of 4,000 ids": posted(
        b"/v1/completions", lambda: json.dumps({"prompt": [[1234] * 4000] * 1000, "max_tokens": 1}).encode()
    ),
    "1,000 prompts of 1,000 ids": posted(
        b"/v1/completions", lambda: json.dumps({"prompt": [[1234] * 1000] * 1000, "max_tokens": 1}).encode()
    ),
    "500 prompts of 1,000 ids": posted(
        b"/v1/completions", lambda: json.dumps({"prompt": [[1234] * 1000] * 500, "max_tokens": 1}).encode()
    ),
    "10 million empty lists": posted(
        b"/v1/completions", lambda: b'{"prompt":"x","metadata":[' + b"[]," * 10_000_000 + b"[]]}"
    ),
    "a million keys of one object": posted(
        b"/v1/completions",
        lambda: json.dumps({"prompt": "x", "logit_bias": dict.fromkeys(range(1 << 20), 1)}).encode(),
    ),
}


def attack(name: str, port: int, seconds: float, connections: int) -> None:
    """The attacker's process. Prints what it sent and what it was told."""
    ends_s = time.perf_counter() + seconds
    sent, told = [0], Counter[str]()
    pieces = list(ATTACKS[name]()) if not name.startswith("no key") or "30 MB" in name else None

    def one() -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
            status = "none"
            try:
                for piece in pieces or ATTACKS[name]():
                    if time.perf_counter() > ends_s:
                        return
                    sock.sendall(piece)
                    sent[0] += len(piece)
                status = sock.recv(4096)[9:12].decode() or "cut"
            except TimeoutError:
                status = "stalled"
            except OSError:
                status = "cut"
            told[status] += 1

    def run() -> None:
        while time.perf_counter() < ends_s:
            one()

    threads = [threading.Thread(target=run) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"mb": sent[0] / 1e6, "told": dict(told)}))


class Client:
    """Somebody else, who asks one thing after the other."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        body = b'{"prompt":"hello","max_tokens":8}'
        head = HEAD % (b"/v1/completions", OTHERS + b"content-length: %d\r\n\r\n" % len(body))
        self._request = head + body

    def ask_ms(self) -> float:
        began_s = time.perf_counter()
        self._sock.sendall(self._request)
        data = b""
        while b"\r\n\r\n" not in data or not data.endswith(b"}"):
            data += self._sock.recv(1 << 16)
        if not data.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"the client was answered {data[:200]!r}")
        return (time.perf_counter() - began_s) * 1e3


def measure(server: ServerProcess, name: str, seconds: float, connections: int) -> str:
    """One row of the table."""
    port = int(server.url.rpartition(":")[2])
    client, before = Client(port), resident_mib(server.gateway_pid)
    for _ in range(20):
        client.ask_ms()
    command = [sys.executable, __file__, name, "--port", str(port)]
    command += ["--seconds", str(seconds), "--connections", str(connections)]
    attacker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    waits, most = [], before
    while attacker.poll() is None:
        waits.append(client.ask_ms())
        most = max(most, resident_mib(server.gateway_pid))
        time.sleep(0.005)
    output, _ = attacker.communicate()
    result = json.loads(output)
    told = ", ".join(f"{status}: {count}" for status, count in result["told"].items())
    p99 = statistics.quantiles(waits, n=100)[98]
    return (
        f"| {name} | {result['mb']:.0f} | {told} | {most - before:.0f} "
        f"| {statistics.median(waits):.1f} | {p99:.0f} | {max(waits):.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help="parts of names (default: all)")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.port:
        attack(arguments.attacks[0], arguments.port, arguments.seconds, arguments.connections)
        return
    chosen = [n for n in ATTACKS if not arguments.attacks or any(part in n for part in arguments.attacks)]
    print("| attack | MB sent | answers | MiB grown | p50 ms | p99 ms | worst ms |")
    print("|---|---:|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.toml"
        keys.write_text("".join(f'[tenants.{n}]\nkeys = ["{hashed(k)}"]\n' for n, k in TENANTS.items()))
        for name in chosen:
            with ServerProcess(["--backend", "null", "--api-keys", str(keys)]) as server:
                print(measure(server, name, arguments.seconds, arguments.connections), flush=True)


if __name__ == "__main__":
    main()
