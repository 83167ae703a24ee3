"""A group of compilers that end with the process which starts them, however that comes about.

A compiler is a tree of programs, and a kernel can tie only the topmost to its parent. So the group is led by
a shell that waits for the end of a pipe whose other end this process alone has, and then kills the group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

from firelane import env
from firelane.child_process import Child
from firelane.child_process.child import is_stopped

SHELL = "/bin/sh"
END_WITH_PIPE = "read -r _; kill -s KILL 0"
END_S = 1.0
"""For the shell to end by itself: another process may have stopped it."""


@contextlib.contextmanager
def compiler_group() -> Generator[int | None]:
    """A process group's id: what is in it is killed when the block is left, or when this process has gone.
    None, this process's own group, where the system has no shell."""
    watched, own = os.pipe()
    try:
        leader = _leader(watched)
    finally:
        os.close(watched)
    try:
        yield None if leader is None else leader.pid
    finally:
        os.close(own)
        if leader is not None:
            leader.end(END_S)


def _leader(watched: int) -> Child | None:
    """A process in a group of its own, which it kills at the end of `watched`."""
    streams = (watched, subprocess.DEVNULL, subprocess.DEVNULL)
    with contextlib.suppress(OSError):
        return Child.start([SHELL, "-c", END_WITH_PIPE], env.for_child(), streams=streams, leads_group=True)
    return None


class LostPrograms:
    """Programs of a compiler for which somebody would wait in vain: those that the system does not run
    (SIGSTOP), and those whose own starter was killed."""

    def __init__(self, pid: int, group: int | None) -> None:
        """pid: of the compiler; group: with all that it starts. None: nothing is known but itself."""
        self._pid, self._group = pid, group
        self._stopped: set[int] = set()

    def kill(self) -> None:
        """Kill them. Those that are stopped were so at the last look, too: what Ctrl-Z stops goes on with
        this process."""
        if self._group is None:
            stopped, orphans = {self._pid} if is_stopped(self._pid) else set[int](), set[int]()
        else:
            stopped, orphans = _lost_members(self._group)
        for pid in stopped & self._stopped | orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._stopped = stopped


def _lost_members(group: int) -> tuple[set[int], set[int]]:
    """A group's processes that are stopped, and those whose parent is neither of the group nor this process.
    None where the system does not tell."""
    parents: dict[int, int] = {}
    stopped: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):  # it has ended meanwhile
            state, parent, its_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group:
                parents[int(path.parts[2])] = int(parent)
                if state == "T":
                    stopped.add(int(path.parts[2]))
    own = {os.getpid(), *parents}
    return stopped, {pid for pid, parent in parents.items() if parent not in own}
