"""A client that costs little: raw sockets, one epoll loop, no parsing beyond what finds an answer's end.

    python benchmarks/host_load.py '{"port": 8000, "model": "m", "connections": 200, ...}'

Run as a process of its own by `host_cost.py`, so that its CPU time is not the server's; prints one JSON
object.
"""

from __future__ import annotations

import json
import re
import select
import socket
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "the",
    "lazy",
    "dog",
    "and",
    "runs",
    "away",
    "from",
    "all",
    "the",
    "other",
    "foxes",
    "in",
    "the",
    "wood",
]
END_OF_STREAM = b"0\r\n\r\n"
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')
TAIL_BYTES = 2048
GIVE_UP_S = 120.0


@dataclass(kw_only=True)
class Load:
    """`requests` in all over `connections`, each of which sends its next one when it has an answer."""

    port: int
    model: str
    connections: int
    requests: int
    max_tokens: int
    stream: bool
    prompt_words: int = 150
    path: str = "/v1/chat/completions"
    idle: int = 0

    def request(self, number: int) -> bytes:
        """No two prompts have the same beginning."""
        words = [str(number), *(WORDS[(number + i) % len(WORDS)] for i in range(self.prompt_words - 1))]
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": " ".join(words)}],
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        data = json.dumps(body).encode()
        head = f"POST {self.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


@dataclass(kw_only=True)
class Result:
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    answers: int = 0
    failures: list[str] = field(default_factory=list)
    tokens: int = 0
    events: int = 0
    received_bytes: int = 0
    first_bytes_ms: list[float] = field(default_factory=list)
    idle_lost: int = 0


class Connection:
    """One answer at a time; `tail` is its end so far."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.tail = b""
        self.missing: int | None = None
        self.sent_s = 0.0

    def send(self, request: bytes) -> None:
        self.tail, self.missing = b"", None
        self.sent_s = time.perf_counter()
        sent = self.sock.send(request)
        if sent < len(request):  # more than the socket's buffer: wait for it
            self.sock.setblocking(True)
            self.sock.sendall(request[sent:])
            self.sock.setblocking(False)


def drive(load: Load) -> Result:
    result = Result()
    idle = [connect(load.port) for _ in range(load.idle)]
    connections = {
        c.sock.fileno(): c for c in (Connection(connect(load.port)) for _ in range(load.connections))
    }
    requests = [load.request(i) for i in range(load.requests)]
    requests.reverse()
    poller = select.epoll()
    began_s, cpu_s = time.perf_counter(), time.process_time()
    for number, connection in connections.items():
        poller.register(number, select.EPOLLIN)
        if requests:
            connection.send(requests.pop())
    while result.answers + len(result.failures) < load.requests:
        if time.perf_counter() - began_s > GIVE_UP_S:
            result.failures.append("gave up")
            break
        for number, _ in poller.poll(1.0):
            connection = connections[number]
            if receive(connection, load, result) and requests:
                connection.send(requests.pop())
    result.seconds = time.perf_counter() - began_s
    result.cpu_seconds = time.process_time() - cpu_s
    result.idle_lost = sum(not alive(sock) for sock in idle)
    return result


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return sock


def receive(connection: Connection, load: Load, result: Result) -> bool:
    """Whether an answer is complete."""
    try:
        data = connection.sock.recv(1 << 18)
    except BlockingIOError:
        return False
    if not data:
        result.failures.append("the server closed the connection")
        return True
    result.received_bytes += len(data)
    if not connection.tail:
        result.first_bytes_ms.append((time.perf_counter() - connection.sent_s) * 1000)
        if not data.startswith(b"HTTP/1.1 200"):
            result.failures.append(data[:300].decode(errors="replace"))
            return True
        connection.missing = whole_length(data)
    return complete(connection, data, load, result)


def whole_length(data: bytes) -> int | None:
    """Bytes of an answer in one piece; None for a stream."""
    head, _, _ = data.partition(b"\r\n\r\n")
    found = LENGTH.search(head)
    return None if found is None else len(head) + 4 + int(found[1])


def complete(connection: Connection, data: bytes, load: Load, result: Result) -> bool:
    connection.tail = (connection.tail + data)[-TAIL_BYTES:] if connection.tail else data
    if load.stream:
        result.events += data.count(b"data: ")
        done = connection.tail.endswith(END_OF_STREAM)
    else:
        assert connection.missing is not None
        connection.missing -= len(data)
        done = connection.missing == 0
    if done:
        found = TOKENS.findall(connection.tail)
        result.answers += 1
        result.tokens += int(found[-1]) if found else 0
    return done


def alive(sock: socket.socket) -> bool:
    """Whether an idle connection still answers."""
    try:
        sock.settimeout(10)
        sock.sendall(b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n")
        return sock.recv(4096).startswith(b"HTTP/1.1 ")
    except OSError:
        return False


if __name__ == "__main__":
    print(json.dumps(asdict(drive(Load(**json.loads(sys.argv[1]))))))
