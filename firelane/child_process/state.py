"""State of a process of this machine, as the system sees it, and words for its return code."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Protocol

CODE_FIELD = 49
"""Index of the exit status (wait(2)) among the fields of /proc/PID/stat behind the name."""
OWN_SIGNALS = frozenset(
    (
        *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV),
        *(signal.SIGPROF, signal.SIGSYS, signal.SIGTRAP, signal.SIGXCPU, signal.SIGVTALRM),
    )
)
"""Signals that a process gets for what it does itself: a crash, or a limit of its time."""


class ProcessState(Protocol):
    """One process, as its system sees it: known to who has started it, asked by who watches."""

    def is_stopped(self) -> bool:
        """Whether the system does not run it (SIGSTOP)."""
        ...

    def waited_s(self) -> float:
        """Time that its threads have waited for a processor so far, together; 0 where nobody knows."""
        ...

    def kill(self) -> None:
        """End it at once, with all that it has started."""
        ...


class UnknownProcess:
    """ProcessState of a process that is not of this machine."""

    def is_stopped(self) -> bool:
        return False

    def waited_s(self) -> float:
        return 0.0

    def kill(self) -> None:
        pass


def waited_s(pid: int | None) -> float:
    """Time that the threads of a process have waited for a processor so far, together. Only Linux tells."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    try:
        return sum(int(thread.read_text().split()[1]) for thread in threads) / 1e9
    except (OSError, IndexError):  # one has ended meanwhile, or the system does not count
        return 0.0


def is_stopped(pid: int | None) -> bool:
    """Whether the system does not run a process (SIGSTOP). Only Linux tells."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def pid_of(process_fd: int) -> int:
    """The id of the process that a process file descriptor means; 0 where it has ended, or nobody knows."""
    try:
        lines = Path(f"/proc/self/fdinfo/{process_fd}").read_text().splitlines()
        found = next((int(line.split()[1]) for line in lines if line.startswith("Pid:")), 0)
    except (OSError, ValueError, IndexError):
        return 0
    return max(found, 0)


def code_of(pid: int) -> int | None:
    """The code, as in Popen.returncode, of a process that is ending or that nobody has waited for; None where
    it lives or nothing is known of it. Only Linux tells."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = int(fields[CODE_FIELD])
    except (OSError, ValueError, IndexError):
        return None
    if status & 0x7F:
        return -(status & 0x7F)
    return status >> 8 if fields[0] in "ZX" else None


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
