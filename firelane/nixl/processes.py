"""The start and the end of an agent's process, by helpers that the engine starts before it gives up its
rights: later it may start nothing, nor send a signal to what has more rights than itself."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from typing import Protocol

from firelane import env
from firelane.child_process import Replacements
from firelane.child_process.nursery import Nursery, NurseryChild, python_path, serve
from firelane.errors import MachineError
from firelane.link.packets import pair

MODULE = "firelane.nixl"
SOCKET_FD = 10
"""Descriptor of a process's socket, in the process: none that it has open at its start."""


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
    """See AgentProcesses. Owns the helpers. confined: agents have no files, and no way into other
    processes."""

    def __init__(self, *, confined: bool = False, replaced: Replacements | None = None) -> None:
        rights = ["confined"] if confined else []
        self._nursery = Nursery.launch(
            "transfer_helper", lambda fd: _spawn(["helper", *rights], fd), replaced or Replacements()
        )
        self._agent: NurseryChild | None = None

    def check(self) -> None:
        """Replace helpers that have ended."""
        self._nursery.check()

    def start(self) -> socket.socket:
        self.kill()
        ours, theirs = pair()
        try:
            with theirs:
                self._agent = self._nursery.start([], [theirs.fileno()])
        except MachineError as error:
            ours.close()
            raise OSError(str(error)) from error
        except OSError:
            ours.close()
            raise
        return ours

    def kill(self) -> None:
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.end()

    def close(self) -> None:
        self.kill()
        self._nursery.close()


def serve_engine(sock: socket.socket, rights: Sequence[str]) -> None:
    """The helper's part, until the engine ends."""
    serve(sock, lambda _, fds: _spawn(["agent", *rights], fds[0]))


def _spawn(arguments: Sequence[str], fd: int) -> int:
    """The id of a process whose socket is this descriptor. Raises OSError."""
    command = [sys.executable, "-m", MODULE, str(SOCKET_FD), *arguments]
    actions = [
        (os.POSIX_SPAWN_DUP2, fd, SOCKET_FD),
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, 2, 1),  # UCX writes its warnings to standard output
    ]
    environment = env.for_agent(confined="confined" in arguments, PYTHONPATH=python_path())
    return os.posix_spawn(sys.executable, command, environment, file_actions=actions)
