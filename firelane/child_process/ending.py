"""The end of a child process: how to wait for it, and what its return code tells."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import time

OWN_SIGNALS = frozenset(
    (
        *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV),
        *(signal.SIGPROF, signal.SIGSYS, signal.SIGTRAP, signal.SIGXCPU, signal.SIGVTALRM),
    )
)
"""Signals that a process gets for what it does itself: a crash, or a limit of its time."""
LOOK_EVERY_S = 0.01
"""Where a system does not tell the end of a process to a wait of limited time."""


def is_own_doing(code: int | None) -> bool:
    """Whether a process ended by what it computed: it crashed, or exceeded a limit. False for one that was
    killed by another process, and for one whose end nobody saw (None). code: as in Popen.returncode."""
    return code is not None and (code > 0 or -code in OWN_SIGNALS)


def in_words(code: int | None) -> str:
    """The end of a process for people, such as "was killed by SIGKILL"."""
    if code is None:
        return "ended unseen"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


async def exited(process: subprocess.Popen[bytes]) -> None:
    """Returns when the process has ended, which `process.wait` has not been told yet. Uses no thread where
    the system has process file descriptors."""
    if not hasattr(os, "pidfd_open"):
        await asyncio.to_thread(_wait_unreaped, process.pid)
        return
    loop, fd = asyncio.get_running_loop(), os.pidfd_open(process.pid)
    ended = asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def ends_within(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait for the end of a process that `process.wait` has not been told yet: its id is not free before."""
    if hasattr(os, "pidfd_open"):
        fd = os.pidfd_open(process.pid)
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            return bool(poll.poll(timeout_s * 1000))
        finally:
            os.close(fd)
    deadline_s = time.monotonic() + timeout_s
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(LOOK_EVERY_S)
    return True


def _wait_unreaped(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
