"""Engines that several gateway processes have connections to."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firelane.gateway.config import ModelConfig
    from firelane.gateway.requests.model_list import Models


class EngineSharing:
    """Other gateway processes, each of which has a connection of its own to all engines. Engines of one place
    come one after the other. Here there are none."""

    is_shared = False
    """There are others."""

    def place(self) -> int:
        return 0

    def add(self, place: int, model: str, replica: str, acceptor: socket.socket) -> None:
        """A new engine. acceptor: the socket over which connections go there; owned from now on."""
        del place, model, replica
        acceptor.close()

    def assign(self, place: int, role: str) -> None:
        """The part of requests that they send to the engines of this place from now on; "": the engine's
        own."""

    def retire(self, place: int) -> None:
        pass

    def is_held(self, place: int) -> bool:
        """They have requests of a retired engine."""
        del place
        return False

    def remove(self, place: int) -> None:
        pass

    def follow(self, models: Models) -> None:
        """They are told of these, which have their residences now."""

    def put_model(self, config: ModelConfig) -> None:
        """One more, which has its residence; or another configuration of one that there is."""

    def remove_model(self, name: str) -> None:
        pass


class OneGateway(EngineSharing):
    """The only gateway of an engine that lets in those of other hosts, too."""

    is_shared = True

    def __init__(self, on_engine: Callable[[socket.socket], None]) -> None:
        """on_engine: gets the acceptor of each new engine, and owns it."""
        self._on_engine = on_engine

    def add(self, place: int, model: str, replica: str, acceptor: socket.socket) -> None:
        del place, model, replica
        self._on_engine(acceptor)


NOT_SHARED = EngineSharing()
