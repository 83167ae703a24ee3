"""Engines that several gateway processes have connections to."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from firelane.gateway.config import ModelConfig
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

    def assign(self, place: int, role: str) -> None:
        """The part of requests that they send to the engines of this place from now on; "": the engine's
        own."""
        ...

    def retire(self, place: int) -> None: ...
    def is_held(self, place: int) -> bool:
        """They have requests of a retired engine."""
        ...

    def remove(self, place: int) -> None: ...
    def follow(self, models: Models) -> None:
        """They are told of these, which have their residences now."""
        ...

    def put_model(self, config: ModelConfig) -> None:
        """One more, which has its residence; or another configuration of one that there is."""
        ...

    def remove_model(self, name: str) -> None: ...


class OneGateway:
    """The EngineSharing of a process that has one gateway of its own. on_engine: who else lets gateways in;
    gets the acceptor of each new engine, and owns it. None: nobody."""

    def __init__(self, on_engine: Callable[[socket.socket], None] | None = None) -> None:
        self.is_shared = on_engine is not None
        self._on_engine = on_engine

    def place(self) -> int:
        return 0

    def add(self, place: int, model: str, replica: str, acceptor: socket.socket) -> None:
        del place, model, replica
        if self._on_engine is None:
            acceptor.close()
        else:
            self._on_engine(acceptor)

    def assign(self, place: int, role: str) -> None:
        pass

    def retire(self, place: int) -> None:
        pass

    def is_held(self, place: int) -> bool:
        del place
        return False

    def remove(self, place: int) -> None:
        pass

    def follow(self, models: Models) -> None:
        pass

    def put_model(self, config: ModelConfig) -> None:
        pass

    def remove_model(self, name: str) -> None:
        pass


NOT_SHARED: EngineSharing = OneGateway()
