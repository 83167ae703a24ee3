"""Work of a child process on itself: it cannot outlive its parent, nor take all memory."""

from __future__ import annotations

import contextlib
import resource
import select
import signal
import socket
import sys

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15


def as_child(fd: str) -> socket.socket:
    """Have this process end with the one that has started it; returns its end of their socket. Ctrl-C is for
    the parent, which decides. Raises SystemExit where that has ended already."""
    end_with_parent()
    return as_grandchild(fd)


def as_grandchild(fd: str) -> socket.socket:
    """Begin, like `as_child`, a process that outlives the helper which has started it for another one: it
    ends with the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=int(fd))
    if not has_parent(sock.fileno()):
        raise SystemExit(1)
    return sock


def end_with_parent() -> None:
    """Have the system kill this process when the thread that started it ends, however that comes about: one
    that computes does not look at its socket. Elsewhere than on Linux that has to do."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def call_itself(name: str) -> None:
    """Give this process a name among processes, of 15 characters at most, which `ps -o comm` shows. Elsewhere
    than on Linux it has none."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def has_parent(fd: int) -> bool:
    """Whether somebody still holds the other end of a pipe or socket. Asked once after end_with_parent():
    a parent that ended before that call has this process killed by nobody."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP if sys.platform == "linux" else 0)
    return not any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


def limit_memory(address_bytes: int) -> None:
    """Limit the memory of this process, which then leaves no core dump either. Systems without such a limit
    go without."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (address_bytes, address_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
