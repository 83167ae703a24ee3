"""Helpers: processes that this one forks while it still may, and while it has one thread and little in
memory."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable

from firelane.child_process.child import Child, pid_of
from firelane.child_process.own import call_itself, end_with_parent

Work = Callable[[socket.socket], None]
"""All of a helper's life, at its end of the socket."""


def seqpacket_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def fork_helper(work: Work, kind: str) -> tuple[Child, socket.socket]:
    """A helper, which ends with this process, and this end of its socket. kind: its name among processes, of
    15 characters at most."""
    ours, theirs = seqpacket_pair()
    with theirs:
        return fork_at(theirs, work, kind), ours


def fork_at(theirs: socket.socket, work: Work, kind: str) -> Child:
    """A helper like that of `fork_helper`, with this end of a socket, which it may share with others."""
    pid = os.fork()
    if pid == 0:
        end_with_parent()
        call_itself(kind)
        run_forked(theirs, work)
    return forked_child(os.pidfd_open(pid))


def run_forked(sock: socket.socket, work: Work) -> None:
    """Do the work in a process that has just been forked; does not return. Nothing that its parent has
    open stays open."""
    with contextlib.suppress(BaseException):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner's parent decides
        os.closerange(3, sock.fileno())
        os.closerange(sock.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        work(sock)
    os._exit(0)


def forked_child(process_fd: int) -> Child:
    """A process that this one or another one has forked."""

    def reap() -> int | None:
        with contextlib.suppress(ChildProcessError):
            return code_at(process_fd)
        return None

    return Child(reap, pid=pid_of(process_fd), fd=process_fd)


def code_at(process_fd: int) -> int:
    """Wait for the end of a child; its code, as in Popen.returncode. Raises ChildProcessError where it is
    another process's."""
    found = os.waitid(os.P_PIDFD, process_fd, os.WEXITED)
    assert found is not None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
