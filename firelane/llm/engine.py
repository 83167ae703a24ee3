"""The engine behind an LLM: in this process, or in one of its own."""

from __future__ import annotations

from typing import Protocol

from firelane.weights.progress import Progress


class Engine(Protocol):
    """Works for the choices that are open in one LocalChannel."""

    def load(self, progress: Progress) -> None:
        """Raises a FirelaneError that says why the model cannot be had."""
        ...

    def turn(self) -> None:
        """Go on until something has come of the open choices, or a second is over; with none, do what there
        is. Raises a FirelaneError where the engine cannot go on."""
        ...

    def tell(self) -> None:
        """No turn may follow for a while: the engine hears now of what was aborted. Raises nothing."""
        ...

    def close(self) -> None:
        """Free the model; idempotent. Whatever ran is aborted."""
        ...
