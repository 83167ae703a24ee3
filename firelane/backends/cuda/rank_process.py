"""A rank beside the first one: python -m firelane.backends.cuda.rank_process FD, started by rank_group.py.

It loads its part of the model on the GPU of its number, then runs the steps that the first rank hands out. It
ends when the socket `FD` closes."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

from firelane.backends.cuda.device import Device
from firelane.backends.cuda.executor import CudaExecutor
from firelane.backends.cuda.loader import load_on, opened
from firelane.backends.cuda.member import Follower
from firelane.backends.cuda.rank_task import Task
from firelane.backends.cuda.step_link import StepLink
from firelane.backends.rank_words import HELLO, LOADED, READY, STEP, receive_task, send_failure
from firelane.child_process import end_with_parent
from firelane.errors import FirelaneError
from firelane.telemetry import logs

Open = Callable[[Task], AbstractContextManager[Device]]
"""Opens the device of a rank."""


def main(arguments: list[str], open_device: Open) -> int:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, and it decides
    sock = socket.socket(fileno=int(arguments[0]))
    sock.sendall(HELLO)
    task: Task = receive_task(sock)
    logs.set_up(task.log_level, task.log_format, rank=task.rank)
    try:
        with open_device(task) as device:
            link = StepLink(task.sizes, task.link_fd, steps=task.layout.pp)
            executor = _load(task, device, sock)
            sock.sendall(READY)
            _follow(sock, executor, link, ahead=min(task.layout.pp, executor.max_in_flight))
            executor.release()
    except (FirelaneError, MemoryError) as error:
        send_failure(sock, f"{error}" or "out of memory")
        return 1
    return 0


def _load(task: Task, device: Device, sock: socket.socket) -> CudaExecutor:
    follower = Follower(
        rank=task.rank,
        layout=task.layout,
        sizes=task.sizes,
        slots_fd=task.slots_fd,
        tell_loaded=lambda: sock.sendall(LOADED),
    )
    program, checkpoint = opened(task.program, task.model_dir, task.config)
    return load_on(device, program, checkpoint, task.config, _silent, follower)


def _follow(sock: socket.socket, executor: CudaExecutor, link: StepLink, *, ahead: int) -> None:
    """Steps, until the rank that draws ends. ahead: of how many the launches are made before the first of
    them has ended, so that a stage does not wait for its host between two."""
    in_flight = 0
    while sock.recv(1) == STEP:
        executor.submit(link.receive())
        in_flight += 1
        if in_flight == ahead:
            executor.wait()
            in_flight -= 1


def _silent(stage: str, done: float, total: float, unit: str, /) -> None:
    del stage, done, total, unit


if __name__ == "__main__":
    from firelane.backends.cuda.rank_device import gpu_of

    sys.exit(main(sys.argv[1:], lambda task: gpu_of(task.rank, task.layout, task.meeting)))
