"""What a child process does to itself first: it cannot outlive its parent, nor take all memory."""

from __future__ import annotations

import contextlib
import resource
import select
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the system kill this process when the thread that started it ends, however that comes about: one
    that computes does not look at its socket. Elsewhere than on Linux that has to do."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def has_parent(fd: int) -> bool:
    """Whether somebody still holds the other end of a pipe or socket. Asked once after end_with_parent():
    a parent that ended before that call has this process killed by nobody."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP if sys.platform == "linux" else 0)
    return not any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


def limit_memory(address_bytes: int) -> None:
    """Of this process, which leaves no core dump either. Systems without such a limit go without."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (address_bytes, address_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
