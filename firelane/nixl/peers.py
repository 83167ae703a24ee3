"""The agents that this one reads from."""

from __future__ import annotations

from firelane.errors import MachineError
from firelane.nixl.library import Library

MOST_PEERS = 1024
"""Lives of other agents in one life of this one."""


class Peers:
    """Each is attached once, and stays: NIXL tells nothing any more of transfers from one that was given up,
    and takes no agent a second time in all cases."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._names: dict[bytes, str] = {}
        self._failed: set[str] = set()

    @property
    def is_full(self) -> bool:
        return len(self._names) >= MOST_PEERS

    def attach(self, metadata: bytes) -> str:
        """Its name. Raises MachineError."""
        if metadata not in self._names:
            self._names[metadata] = self._library.attach(metadata)
        name = self._names[metadata]
        if name in self._failed:
            raise MachineError("reads from this agent have failed before")
        return name

    def fail(self, name: str) -> None:
        """A read from there has failed: it is not asked again in this life."""
        self._failed.add(name)
