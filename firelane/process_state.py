"""State of an engine's process, as its system sees it: known to who has started it, asked by who watches."""

from __future__ import annotations

from typing import Protocol


class ProcessState(Protocol):
    """One process."""

    def is_stopped(self) -> bool:
        """Whether the system does not run it (SIGSTOP)."""
        ...

    def waited_s(self) -> float:
        """Time that its threads have waited for a processor so far, together; 0 where nobody knows."""
        ...


class UnknownProcess:
    """ProcessState of a process that is not of this machine."""

    def is_stopped(self) -> bool:
        return False

    def waited_s(self) -> float:
        return 0.0
