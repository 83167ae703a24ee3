"""Words between an engine and the processes of its ranks, over a socket pair: a rank says HELLO, is told its
task, says LOADED when its weights are there, then READY; or FAILED and why. STEP: run the one that lies in
the memory that all share."""

from __future__ import annotations

import contextlib
import pickle
import socket
from typing import Any

HELLO, LOADED, READY, FAILED, STEP = b"H", b"L", b"R", b"F", b"S"
LENGTH_BYTES = 8


def send_task(sock: socket.socket, task: object) -> None:
    payload = pickle.dumps(task)
    sock.sendall(len(payload).to_bytes(LENGTH_BYTES, "little") + payload)


def receive_task(sock: socket.socket) -> Any:
    """The parent's own words, over a socket that nobody else has."""
    with sock.makefile("rb") as stream:
        length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        return pickle.loads(stream.read(length))


def send_failure(sock: socket.socket, message: str) -> None:
    with contextlib.suppress(OSError):
        sock.sendall(FAILED + message.encode())
