"""Requests of one model that are at its engines, by their names in the log."""

from __future__ import annotations

from typing import Protocol

from firelane.errors import FirelaneError


class Running(Protocol):
    def fail(self, error: FirelaneError) -> None:
        """End with an error; does nothing where it has ended."""
        ...


class RunningRequests:
    """Several may have one name, which clients choose."""

    def __init__(self) -> None:
        self._runs: dict[str, list[Running]] = {}

    def add(self, name: str, run: Running) -> None:
        self._runs.setdefault(name, []).append(run)

    def remove(self, name: str, run: Running) -> None:
        """Does nothing where it is not there."""
        runs = self._runs.get(name, [])
        if run in runs:
            runs.remove(run)
        if not runs:
            self._runs.pop(name, None)

    def abort(self, name: str | None, error: FirelaneError) -> int:
        """End those of a name, None: all; returns how many there were."""
        names = list(self._runs) if name is None else [name]
        runs = [run for one in names for run in self._runs.get(one, ())]
        for run in runs:
            run.fail(error)
        return len(runs)
