"""A group of compilers that end with the process which starts them, however that comes about.

A compiler is a tree of programs, and a kernel can tie only the topmost to its parent. So the group is led by
a shell that waits for the end of a pipe whose other end this process alone has, and then kills the group.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Generator

from firelane import env
from firelane.child_process import Child

SHELL = "/bin/sh"
END_WITH_PIPE = "read -r _; kill -s KILL 0"


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
            leader.end(None)


def _leader(watched: int) -> Child | None:
    """A process in a group of its own, which it kills at the end of `watched`."""
    streams = (watched, subprocess.DEVNULL, subprocess.DEVNULL)
    with contextlib.suppress(OSError):
        return Child.start([SHELL, "-c", END_WITH_PIPE], env.for_child(), streams=streams, leads_group=True)
    return None
