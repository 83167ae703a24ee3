"""Messages between an engine and its agent, over sockets that keep messages apart.

over the first socket, which lives as long as the agent
    engine -> agent   Register     memories that others may read, with their descriptors
    agent -> engine   Registered   or TransferFailed
    engine -> agent   Busy         others read now: see to it at once
    engine -> agent   Ping         answered with Done
    engine -> agent   Open         a session, with its socket and the descriptor of its staging memory
over the socket of a session, which has one peer
    engine -> agent   Attach       answered with Done, or TransferFailed
    engine -> agent   Read         any number at a time; answered in order with Done, or TransferFailed
"""

from __future__ import annotations

import socket

import msgspec

from firelane.link import packets

MOST_BYTES = 1 << 16
"""Bytes of one message, at most."""
MOST_FDS = 4


class Register(msgspec.Struct, frozen=True, array_like=True, tag="register"):
    """sizes: bytes of each memory."""

    sizes: list[int]


class Registered(msgspec.Struct, frozen=True, array_like=True, tag="registered"):
    """metadata: of the agent, as NIXL makes it. addresses: of each memory, in the agent's process."""

    metadata: bytes
    addresses: list[int]


class Busy(msgspec.Struct, frozen=True, array_like=True, tag="busy"):
    pass


class Ping(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    pass


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """nbytes: of the staging memory, which the agent alone writes."""

    nbytes: int


class Attach(msgspec.Struct, frozen=True, array_like=True, tag="attach"):
    """The peer's agent as it described itself in Registered."""

    metadata: bytes
    addresses: list[int]


Items = tuple[int, int, list[int], int]
"""Number of a memory of the peer, the bytes of an item there, numbers of items, and where they are to lie in
the staging memory, one behind the other."""


class ReadItems(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """steps: each is read once all of the one before is there."""

    steps: list[Items]


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    pass


class TransferFailed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    reason: str


Message = Register | Registered | Busy | Ping | Open | Attach | ReadItems | Done | TransferFailed
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def receive(sock: socket.socket) -> tuple[Message, list[int]]:
    """The next message and its descriptors. Raises as packets.receive()."""
    return packets.receive(sock, _decoder, MOST_BYTES, MOST_FDS)
