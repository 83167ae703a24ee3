"""The places of all engines: each gateway process has a connection of its own to the engine in each."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from firelane.gateway.processes.control import Engine, Remove, Retire, Role
from firelane.gateway.processes.gateway_child import GatewayChild
from firelane.wire.numbers import NUMBER_BYTES


@dataclass(eq=False)
class _Place:
    """held_by: processes that still have requests there, once it is retired."""

    model: str
    replica: str
    acceptor: socket.socket | None = None
    retired: bool = False
    held_by: set[int] = field(default_factory=set[int])


class EnginePlaces:
    """Owns the acceptors of the engines. children: the processes that run."""

    def __init__(self, children: Callable[[], Iterable[GatewayChild]]) -> None:
        self._children = children
        self._places: dict[int, _Place] = {}
        self._roles: dict[int, str] = {}
        """Roles of the places that have been given one: kept whichever engine comes, or process."""

    def add(self, place: int, model: str, replica: str, acceptor: socket.socket) -> None:
        """A new engine is in this place. Owns the acceptor."""
        known = self._places.setdefault(place, _Place(model, replica))
        if known.acceptor is not None:
            known.acceptor.close()
        acceptor.setblocking(False)
        known.acceptor = acceptor
        for child in self._children():
            self._connect(child, place, known)

    def assign(self, place: int, role: str) -> None:
        """Engines of this place have another role: see Role."""
        self._roles[place] = role
        for child in self._children():
            child.control.send(Role(place, role))

    def retire(self, place: int) -> None:
        """No new requests go there: see `is_held`."""
        known = self._places.get(place)
        if known is not None:
            known.retired, known.held_by = True, {child.index for child in self._children()}
            for child in self._children():
                child.control.send(Retire(place))

    def is_held(self, place: int) -> bool:
        """There are requests of a retired engine."""
        return place in self._places and bool(self._places[place].held_by)

    def emptied(self, place: int, index: int) -> None:
        """A process has no requests there any more."""
        if place in self._places:
            self._places[place].held_by.discard(index)

    def remove(self, place: int) -> None:
        self._roles.pop(place, None)
        known = self._places.pop(place, None)
        if known is not None:
            for child in self._children():
                child.control.send(Remove(place))
            if known.acceptor is not None:
                known.acceptor.close()

    def connect(self, child: GatewayChild) -> None:
        """A new process, to all engines."""
        for place, known in self._places.items():
            self._connect(child, place, known)

    def ended(self, index: int) -> None:
        """The process at this index is no more."""
        for known in self._places.values():
            known.held_by.discard(index)

    def close(self) -> None:
        for place in list(self._places):
            self.remove(place)

    def _connect(self, child: GatewayChild, place: int, known: _Place) -> None:
        """An engine, or a process, that has gone meanwhile is no error: another one comes."""
        if known.acceptor is None or known.retired:
            return
        ours, theirs = socket.socketpair()
        with ours, theirs, contextlib.suppress(OSError):
            number = child.number.to_bytes(NUMBER_BYTES, "little")
            socket.send_fds(known.acceptor, [number], [theirs.fileno()])
            engine = Engine(place, known.model, known.replica, self._roles.get(place, ""))
            child.control.send(engine, [ours.fileno()])
