"""A rank beside the first one: python -m firelane.backends.cuda.ranks.worker FD, started by
backends.ranks.leader.

It loads its part of the model on the GPU of its number, then runs the steps that the first rank hands out. It
ends when the socket `FD` closes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from firelane.backends.cuda.device.device import Device
from firelane.backends.cuda.executor import CudaExecutor
from firelane.backends.cuda.loader import load_on, opened
from firelane.backends.ranks import worker
from firelane.backends.ranks.member import Follower
from firelane.backends.ranks.step_ring import StepRing, shared_ring
from firelane.backends.ranks.words import Task
from firelane.backends.ranks.worker import LeaderSocket, silent

Open = Callable[[Task], AbstractContextManager[Device]]
"""Opens the device of a rank."""


def main(arguments: list[str], open_device: Open) -> int:
    return worker.run(arguments, partial(_work, open_device))


def _work(open_device: Open, task: Task, leader: LeaderSocket) -> None:
    stages = task.hosts.ranks.pp
    with open_device(task) as device:
        ring = shared_ring(task.share.ring_fd, task.limits, stages)
        executor = _load(task, device, leader)
        leader.tell_ready(executor)
        _follow(leader, executor, ring, ahead=min(stages, executor.max_in_flight))
        executor.release()


def _load(task: Task, device: Device, leader: LeaderSocket) -> CudaExecutor:
    follower = Follower(
        hosts=task.hosts,
        rank=task.rank,
        limits=task.limits,
        slots_fd=task.slots_fd,
        tell_loaded=leader.tell_loaded,
    )
    program, checkpoint = opened(task.program, task.model_dir, task.config)
    return load_on(device, program, checkpoint, task.config, silent, follower)


def _follow(leader: LeaderSocket, executor: CudaExecutor, ring: StepRing, *, ahead: int) -> None:
    """Run steps, until the rank that draws ends. ahead: of how many the launches are made before the first
    of them has ended, so that a stage does not wait for its host between two."""
    in_flight = 0
    for _ in leader.orders():
        executor.submit(ring.read())
        in_flight += 1
        if in_flight == ahead:
            executor.wait()
            in_flight -= 1


if __name__ == "__main__":
    from firelane.backends.cuda.ranks.device import gpu_of

    sys.exit(main(sys.argv[1:], lambda task: gpu_of(task.rank, task.hosts.ranks, task.share.meeting)))
