"""The process of a rank that does not lead: it loads its part of the model, then does what it is told."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

from firelane.backends.ranks.words import (
    GIVEN,
    HELLO,
    LOADED,
    ORDER,
    READY,
    RESTED,
    SIZES,
    Task,
    receive_task,
    send_failure,
)
from firelane.child_process import as_child
from firelane.contract import Executor, GivenBack
from firelane.errors import FirelaneError
from firelane.telemetry import logs


class LeaderSocket:
    """The rank that leads, as the process of another rank sees it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def await_task(self) -> Task:
        self._sock.sendall(HELLO)
        return receive_task(self._sock)

    def tell_loaded(self) -> None:
        """The weights are there."""
        self._sock.sendall(LOADED)

    def tell_ready(self, executor: Executor) -> None:
        """The first step may come."""
        self._sock.sendall(READY + SIZES.pack(executor.weights_bytes, executor.kv_bytes))

    def tell_rested(self, given: GivenBack) -> None:
        self._sock.sendall(RESTED + GIVEN.pack(*given))

    def tell_failed(self, why: str) -> None:
        send_failure(self._sock, why)

    def orders(self) -> Iterator[int]:
        """Orders (words.ORDER), until the leader ends."""
        with suppress(OSError):
            while len(order := self._sock.recv(ORDER.size, socket.MSG_WAITALL)) == ORDER.size:
                yield ORDER.unpack(order)[0]


def run(arguments: list[str], work: Callable[[Task, LeaderSocket], None]) -> int:
    """The main function of a rank's process. `arguments`: the descriptor of its socket. `work` ends with the
    group; a FirelaneError of it is told to the leader. Returns the exit code."""
    leader = LeaderSocket(as_child(arguments[0]))
    task = leader.await_task()
    logs.set_up(task.log_level, task.log_format, rank=task.rank)
    try:
        work(task, leader)
    except (FirelaneError, MemoryError) as error:
        leader.tell_failed(f"{error}" or "out of memory")
        return 1
    return 0


def silent(stage: str, done: float, total: float, unit: str, /) -> None:
    """A ProgressCallback that tells nobody: the leader's progress is that of all."""
    del stage, done, total, unit
