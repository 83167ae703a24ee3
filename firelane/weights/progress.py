"""Progress of long work: download, check, pack."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called with the stage ("download", "pack" …), and how much is done of how much, in `unit`s."""

    def __call__(self, stage: str, done: float, total: float, unit: str, /) -> None: ...


def silent(stage: str, done: float, total: float, unit: str, /) -> None:
    """Progress that nobody watches."""
