"""The start and the end of an agent's process, by a helper that the engine starts before it gives up its
rights: later it may start nothing, nor send a signal to what has more rights than itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from typing import Protocol

from firelane import env
from firelane.nixl.messages import pair

MODULE = "firelane.nixl"
START, KILL = b"s", b"k"
DONE, FAILED = b".", b"!"


class AgentProcesses(Protocol):
    """One process at a time, each from a start to its end."""

    def start(self) -> socket.socket:
        """Kill the one before, and start another; its first socket, which the caller closes. Raises
        OSError."""
        ...

    def kill(self) -> None:
        """Have no process any more: it writes nothing from then on. Raises OSError."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...


class HelperAgents:
    """See AgentProcesses. Owns the helper. confined: agents have no files, and no way into other
    processes."""

    def __init__(self, *, confined: bool = False) -> None:
        self._sock, theirs = pair()
        self._asking = threading.Lock()
        with theirs:
            self._helper = _child("helper", theirs, confined=confined)

    def start(self) -> socket.socket:
        ours, theirs = pair()
        try:
            with theirs:
                self._ask(START, theirs.fileno())
        except OSError:
            ours.close()
            raise
        return ours

    def kill(self) -> None:
        self._ask(KILL)

    def close(self) -> None:
        """The helper ends with its socket, and kills the agent first."""
        self._sock.close()
        self._helper.wait()

    def _ask(self, what: bytes, *fds: int) -> None:
        with self._asking:
            socket.send_fds(self._sock, [what], fds)
            if self._sock.recv(1) != DONE:
                raise OSError("the helper started no agent")


def serve(sock: socket.socket, *, confined: bool) -> None:
    """The helper's part, until the engine ends."""
    agent: subprocess.Popen[bytes] | None = None
    while True:
        what, fds, _, _ = socket.recv_fds(sock, 1, 1)
        if agent is not None:
            agent.kill()
            agent.wait()
            agent = None
        if not what:
            return
        answer = DONE
        for fd in fds:
            with socket.socket(fileno=fd) as theirs:
                try:
                    agent = _child("agent", theirs, confined=confined)
                except OSError:
                    answer = FAILED
        sock.send(answer)


def _child(part: str, sock: socket.socket, *, confined: bool) -> subprocess.Popen[bytes]:
    arguments = [part, str(sock.fileno()), *(["confined"] if confined else [])]
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=2,  # UCX writes its warnings to standard output
        pass_fds=[sock.fileno()],
        env=env.for_agent(confined=confined, PYTHONPATH=path),
    )
