"""A plain socket to a gateway, for requests that no HTTP client sends."""

from __future__ import annotations

import json
import socket
from typing import Any

from service import PATIENCE_S

BODY = b'{"prompt":"say","max_tokens":40}'


def post(body: bytes = BODY, headers: bytes = b"", version: bytes = b"1.1") -> bytes:
    head = b"POST /v1/completions HTTP/%b\r\nhost: localhost\r\n%bcontent-length: %d\r\n\r\n" % (
        version,
        headers,
        len(body),
    )
    return head + body


class Raw:
    """One connection."""

    def __init__(self, service: Any) -> None:
        self.sock = socket.create_connection(("127.0.0.1", service.gateway.port), timeout=PATIENCE_S)
        self.buffer = b""

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def response(self) -> tuple[int, dict[str, str], bytes]:
        """The next response with a content-length."""
        while b"\r\n\r\n" not in self.buffer:
            self.receive()
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:])
        size = int(headers.get("content-length", 0))
        while len(self.buffer) < size:
            self.receive()
        body, self.buffer = self.buffer[:size], self.buffer[size:]
        return int(lines[0].split()[1]), headers, body

    def receive(self) -> None:
        data = self.sock.recv(65536)
        if not data:
            raise EOFError(self.buffer)
        self.buffer += data

    def rest(self) -> bytes:
        """All until the server closes."""
        data = self.buffer
        while piece := self.sock.recv(65536):
            data += piece
        return data


def text_of(body: bytes) -> str:
    return json.loads(body)["choices"][0]["text"]
