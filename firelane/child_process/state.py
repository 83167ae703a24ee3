"""State of a process of this machine, as the system sees it."""

from __future__ import annotations

from pathlib import Path


def is_stopped(pid: int | None) -> bool:
    """Whether the system does not run a process: SIGSTOP, or a debugger. Only Linux tells."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in "Tt"


def waited_s(pid: int | None) -> float:
    """Time that the threads of a process have waited for a processor so far, together. Only Linux tells."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    try:
        return sum(int(thread.read_text().split()[1]) for thread in threads) / 1e9
    except (OSError, IndexError):  # one has ended meanwhile, or the system does not count
        return 0.0
