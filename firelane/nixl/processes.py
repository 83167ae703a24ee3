"""The start and the end of an agent's process, by helpers that the engine starts before it gives up its
rights: later it may start nothing, nor send a signal to what has more rights than itself."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from firelane import env
from firelane.child_process import Child, Replacements
from firelane.child_process.nursery import Nursery, python_path, serve, spawn_module
from firelane.errors import MachineError

MODULE = "firelane.nixl"


class HelperAgents:
    """The agent's process, one at a time, each from a start to its end. Owns the helpers. confined: agents
    have no files, and no way into other processes."""

    def __init__(self, *, confined: bool = False, replaced: Replacements | None = None) -> None:
        words = [MODULE, "helper", *(["confined"] if confined else [])]
        self._nursery = Nursery.launch(
            "transfer_helper", words, _environment(words), replaced or Replacements()
        )
        self._agent: Child | None = None

    def check(self) -> None:
        """Replace helpers that have ended."""
        self._nursery.check()

    def start(self) -> socket.socket:
        """Kill the process before, and start another; its first socket, which the caller closes. Raises
        OSError."""
        self.kill()
        try:
            self._agent, sock = self._nursery.connected(socket.SOCK_SEQPACKET)
        except MachineError as error:
            raise OSError(str(error)) from error
        return sock

    def kill(self) -> None:
        """Have no process any more: it writes nothing from then on. Raises OSError."""
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.end()

    def close(self) -> None:
        """Idempotent."""
        self.kill()
        self._nursery.close()


def serve_engine(sock: socket.socket, rights: Sequence[str]) -> None:
    """The helper's part, until the engine ends."""
    words = [MODULE, "agent", *rights]
    serve(sock, lambda fd: spawn_module(words, _environment(words), fd, shows_errors=True))


def _environment(words: Sequence[str]) -> dict[str, str]:
    return env.for_agent(confined="confined" in words, PYTHONPATH=python_path())
