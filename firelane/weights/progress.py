"""Progress of long work: download, check, pack."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float, float, str], None]
"""Called with the stage ("download", "pack" …), and how much is done of how much, in units of that name."""


def silent(stage: str, done: float, total: float, unit: str, /) -> None:
    """Progress that nobody watches."""
