"""Systemd passes sockets to the server, and hears when it is ready."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from firelane import env
from firelane.node import systemd

CHILD = """
import os, sys
from firelane.node.systemd import passed_sockets
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
(sock,) = passed_sockets()
print(sock.getsockname()[1], passed_sockets())
"""


def test_sockets_that_are_passed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(listener.fileno())],
            pass_fds=[listener.fileno()],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"{listener.getsockname()[1]} []\n"


def test_sockets_for_another_process_are_left() -> None:
    environ = {"LISTEN_FDS": "2", "LISTEN_PID": "1", "LISTEN_FDNAMES": "a:b"}
    assert env.take_passed_fds(os.getpid(), environ) == 0
    assert environ == {}


def test_readiness_is_told(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    systemd.notify("READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hears:
        hears.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        systemd.notify("READY=1")
        assert hears.recv(100) == b"READY=1"
    systemd.notify("STOPPING=1")  # nobody hears it any more
