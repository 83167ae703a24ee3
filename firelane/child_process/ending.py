"""Words for the return code of a child process."""

from __future__ import annotations

import signal

OWN_SIGNALS = frozenset(
    (
        *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV),
        *(signal.SIGPROF, signal.SIGSYS, signal.SIGTRAP, signal.SIGXCPU, signal.SIGVTALRM),
    )
)
"""Signals that a process gets for what it does itself: a crash, or a limit of its time."""


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
