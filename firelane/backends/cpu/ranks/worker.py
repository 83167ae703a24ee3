"""A rank beside the first one: python -m firelane.backends.cpu.ranks.worker FD, started by
backends.ranks.leader.

Once it is loaded it runs the steps that the engine hands out, without a line of Python in between. It ends
when the socket `FD` closes."""

from __future__ import annotations

import os
import sys
import threading
import time

from firelane import env
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.interconnect import JoinedInterconnect
from firelane.backends.cpu.loader import load_for
from firelane.backends.ranks.member import Follower
from firelane.backends.ranks.words import WAKE, Task
from firelane.backends.ranks.worker import LeaderSocket, run, silent
from firelane.contract import GivenBack, private_bytes
from firelane.sandbox.confine import serve_only

POLL_S = 0.0005


def work(task: Task, leader: LeaderSocket) -> None:
    """Run the steps of the rank, until the group ends."""
    if task.share.cores:
        os.sched_setaffinity(0, task.share.cores)
    follower = Follower(
        hosts=task.hosts,
        rank=task.rank,
        limits=task.limits,
        slots_fd=task.slots_fd,
        tell_loaded=leader.tell_loaded,
    )
    joined = JoinedInterconnect(task)
    executor = load_for(env.read(), task.program, task.model_dir, task.config, silent, follower, joined)
    if task.config.sandbox:
        serve_only()  # the first rank's sandbox is this process's, too
    threading.Thread(target=_obey, args=(leader, executor), daemon=True).start()
    leader.tell_ready(executor)
    executor.follow()
    executor.release()


def _obey(leader: LeaderSocket, executor: CpuExecutor) -> None:
    """The group ends when the engine does."""
    for order in leader.orders():
        if order == WAKE:
            executor.wake()
        else:
            leader.tell_rested(_rest(executor, order))
    os._exit(0)


def _rest(executor: CpuExecutor, steps: int) -> GivenBack:
    """Standby, once so many steps have ended: the rank that draws may have its tokens before."""
    while executor.ended_steps() < steps:
        time.sleep(POLL_S)
    before = private_bytes()
    executor.standby()
    held = private_bytes()
    return GivenBack(max(0, before - held), held)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], work))
