"""Options of TCP connections between processes of Firelane on different hosts."""

from __future__ import annotations

import contextlib
import socket
from asyncio.trsock import TransportSocket

PROBES = 5


def watch_peer(sock: socket.socket | TransportSocket, dead_s: int) -> None:
    """Have the system end the connection, of a TCP socket, when the other host is gone without a word:
    dead_s seconds after it last acknowledged anything, also while nothing is sent. What is written goes out
    at once. Options that the system does not know are left out."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    for name, value in (
        ("TCP_KEEPIDLE", dead_s // 2),
        ("TCP_KEEPINTVL", max(1, dead_s // 2 // PROBES)),
        ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", 1000 * dead_s),
    ):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    for level, option, value in options:
        with contextlib.suppress(OSError):
            sock.setsockopt(level, option, value)
