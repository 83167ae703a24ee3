"""Engines that several gateway processes have connections to."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from firelane.cli.node_plan import ModelSetup
    from firelane.gateway.requests.models import Models


class EngineSharing(Protocol):
    """Other gateway processes, each of which has a connection of its own to all engines. Engines of one
    place come one after the other."""

    is_shared: bool
    """There are others."""

    def place(self) -> int: ...
    def add(self, place: int, model: str, replica: str, acceptor: socket.socket) -> None:
        """A new engine. acceptor: the socket over which connections go there; owned from now on."""
        ...

    def retire(self, place: int) -> None: ...
    def is_held(self, place: int) -> bool:
        """They have requests of a retired engine."""
        ...

    def remove(self, place: int) -> None: ...
    def follow(self, models: Models) -> None:
        """They are told of these, which have their residences now."""
        ...

    def add_model(self, setup: ModelSetup) -> None:
        """One more, which has its residence."""
        ...

    def change_model(self, setup: ModelSetup) -> None: ...
    def remove_model(self, name: str) -> None: ...


class NotShared:
    """The EngineSharing of a server with one gateway process."""

    is_shared = False

    def place(self) -> int:
        return 0

    def add(self, place: int, model: str, replica: str, acceptor: socket.socket) -> None:
        del place, model, replica
        acceptor.close()

    def retire(self, place: int) -> None:
        pass

    def is_held(self, place: int) -> bool:
        del place
        return False

    def remove(self, place: int) -> None:
        pass

    def follow(self, models: Models) -> None:
        pass

    def add_model(self, setup: ModelSetup) -> None:
        pass

    def change_model(self, setup: ModelSetup) -> None:
        pass

    def remove_model(self, name: str) -> None:
        pass


NOT_SHARED: EngineSharing = NotShared()
