"""One host of a group of ranks, as an actor of Ray; Ray itself is not needed to make one."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence

from firelane import env

STOP_S = 10.0


class RankHost:
    """Owns the host's `firelane serve`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def place(self) -> str:
        """HOST:PORT where the other hosts find this one."""
        from ray.util import get_node_ip_address

        address = get_node_ip_address()
        with socket.socket() as sock:
            sock.bind((address, 0))
            return f"{address}:{sock.getsockname()[1]}"

    def start(self, arguments: Sequence[str], key: str) -> None:
        """key: the secret of the group. What was started before has ended."""
        command = [sys.executable, "-m", "firelane_ray.child", "serve", *arguments]
        self._process = subprocess.Popen(command, env=env.for_child(FIRELANE_CLUSTER_KEY=key))

    def poll(self) -> int | None:
        """The exit code, or None while it runs; 0 where nothing was started."""
        return 0 if self._process is None else self._process.poll()

    def pid(self) -> int:
        """0 where nothing was started."""
        return 0 if self._process is None else self._process.pid
