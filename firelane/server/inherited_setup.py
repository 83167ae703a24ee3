"""Settings of a server's process that the processes which it starts have from it."""

from __future__ import annotations

import contextlib
import resource

from firelane import env
from firelane.errors import UsageError
from firelane.storage import USED_BY_OTHERS, keep_from_others

FEWEST_FILES = 256
"""Descriptors without which a server does not start."""


def set_up_inherited() -> None:
    """Called before the first of them is started; idempotent. Raises UsageError where a server cannot run
    here."""
    keep_from_others(USED_BY_OTHERS)
    raise_file_limit()
    env.set_for_server()


def raise_file_limit() -> None:
    """Each connection takes a descriptor: open as many as the system lets this process have. Raises
    UsageError where these are too few to serve.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft != resource.RLIM_INFINITY and soft < FEWEST_FILES:
        raise UsageError(
            f"this process may open {soft} files, and a server needs at least {FEWEST_FILES}: "
            "raise the limit (ulimit -n)"
        )
