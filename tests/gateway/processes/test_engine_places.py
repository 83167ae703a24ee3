"""Places of engines, as other gateway processes are told of them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from firelane.gateway.processes.control import Engine, Message, Remove, Role
from firelane.gateway.processes.places import EnginePlaces


class Child:
    """A process that keeps what it is sent."""

    def __init__(self, index: int) -> None:
        self.index = self.number = index
        self.sent: list[Message] = []
        self.control = SimpleNamespace(send=lambda message, _=(): self.sent.append(message))


@contextmanager
def places_of(children: list[Any]) -> Iterator[tuple[EnginePlaces, Any]]:
    """The places, and a function that puts an engine in one."""
    places, engines = EnginePlaces(lambda: children), list[socket.socket]()

    def bring(place: int, replica: str) -> None:
        ours, theirs = socket.socketpair()
        engines.append(theirs)
        places.add(place, "m", replica, ours)

    try:
        yield places, bring
    finally:
        places.close()
        for engine in engines:
            engine.close()


def test_all_hear_of_a_role_and_so_do_those_that_come_later() -> None:
    first, late = Child(1), Child(2)
    with places_of([first]) as (places, bring):
        places.assign(1, "")
        bring(1, "0")
        places.assign(1, "decode")
        assert first.sent == [Role(1, ""), Engine(1, "m", "0", ""), Role(1, "decode")]
        places.connect(late)  # pyright: ignore[reportArgumentType]
        assert late.sent == [Engine(1, "m", "0", "decode")]


def test_the_next_engine_of_a_place_has_its_role() -> None:
    child = Child(1)
    with places_of([child]) as (places, bring):
        places.assign(1, "prefill")
        for _ in range(2):
            bring(1, "0")
        assert child.sent[1:] == [Engine(1, "m", "0", "prefill")] * 2
        places.remove(1)
        bring(1, "0")
        assert child.sent[3:] == [Remove(1), Engine(1, "m", "0", "")]
