"""A rank beside the engine: python -m firelane.backends.cpu.rank_process FD, started by rank_group.py.

It loads its part of the model and says that it is ready; then it runs the steps that the engine hands out,
without a line of Python in between. It ends when the socket `FD` closes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time

from firelane import env
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.loader import load_for
from firelane.backends.cpu.member import Follower
from firelane.backends.cpu.rank_task import ORDER, RESTED, SIZES, WAKE, Task
from firelane.backends.rank_words import HELLO, LOADED, READY, receive_task, send_failure
from firelane.child_process import end_with_parent
from firelane.contract import GivenBack, private_bytes
from firelane.errors import FirelaneError
from firelane.sandbox.confine import serve_only
from firelane.telemetry import logs

POLL_S = 0.0005


def main(arguments: list[str]) -> int:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, and it decides
    sock = socket.socket(fileno=int(arguments[0]))
    sock.sendall(HELLO)
    task: Task = receive_task(sock)
    logs.set_up(task.log_level, task.log_format, rank=task.rank)
    if task.cores:
        os.sched_setaffinity(0, task.cores)
    follower = Follower(
        rank=task.rank,
        hosts=task.hosts,
        limits=task.limits,
        link_sizes=task.link_sizes,
        link_fd=task.link_fd,
        slots_fd=task.slots_fd,
        wires=task.wires,
        cores=task.group_cores,
    )
    try:
        executor = load_for(env.read(), task.program, task.model_dir, task.config, _silent, follower)
    except (FirelaneError, MemoryError) as error:
        send_failure(sock, f"{error}" or "out of memory")
        return 1
    if task.config.sandbox:
        serve_only()  # the first rank's sandbox is this process's, too
    threading.Thread(target=_obey, args=(sock, executor), daemon=True).start()
    sock.sendall(LOADED + READY + SIZES.pack(executor.weights_bytes, executor.kv_bytes))
    executor.follow()
    executor.release()
    return 0


def _rest(executor: CpuExecutor, steps: int) -> GivenBack:
    """Standby, once so many steps have ended: the rank that draws may have its tokens before."""
    while executor.ended_steps() < steps:
        time.sleep(POLL_S)
    before = private_bytes()
    executor.standby()
    held = private_bytes()
    return GivenBack(max(0, before - held), held)


def _obey(sock: socket.socket, executor: CpuExecutor) -> None:
    """The group ends when the engine does."""
    with contextlib.suppress(OSError):
        while len(order := sock.recv(ORDER.size, socket.MSG_WAITALL)) == ORDER.size:
            (steps,) = ORDER.unpack(order)
            if steps == WAKE:
                executor.wake()
            else:
                sock.sendall(RESTED.pack(*_rest(executor, steps)))
    os._exit(0)


def _silent(stage: str, done: float, total: float, unit: str, /) -> None:
    del stage, done, total, unit


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
