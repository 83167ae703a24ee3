"""Sockets that systemd passes to a service, and messages to systemd (sd_listen_fds(3), sd_notify(3))."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence

from firelane import env

FIRST_FD = 3


def passed_sockets() -> Sequence[socket.socket]:
    """Listening sockets of a .socket unit; none elsewhere. For one caller, which owns them."""
    sockets = [socket.socket(fileno=FIRST_FD + i) for i in range(env.take_passed_fds(os.getpid()))]
    for sock in sockets:
        sock.set_inheritable(False)
    return sockets


def notify(state: str) -> None:
    """Tell systemd. Where there is nobody to tell, nothing happens."""
    name = env.notify_socket()
    if not name:
        return
    address = "\0" + name[1:] if name.startswith("@") else name
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(state.encode(), address)
