"""Messages about other engines, between an engine and the process that has started it, over a socket of their
own that keeps messages apart.

Whoever starts engines connects them, so that none needs a right to open a connection: with each
PeerConnection comes the descriptor of a connected socket.
"""

from __future__ import annotations

import socket
from typing import Literal

import msgspec

from firelane.link import packets

MOST_BYTES = 1 << 12


class PeerReady(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """From an engine: it can be connected to others now, and is known as engine_id."""

    engine_id: str


class PeerLost(msgspec.Struct, frozen=True, array_like=True, tag="lost"):
    """From an engine: it has no pages from this one any more, and would like to be connected again."""

    engine_id: str


class PeerAway(msgspec.Struct, frozen=True, array_like=True, tag="away"):
    """From an engine: it goes to standby, and is connected to none until it is ready again."""


class PeerGone(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    """To an engine: this one has ended, or is in standby. Its memory is not to be kept mapped."""

    engine_id: str


class PeerSought(msgspec.Struct, frozen=True, array_like=True, tag="sought"):
    """From an engine: it would like to have pages from one of another server, which gives them at this
    address (host:port). Answered with PeerConnection or PeerMissing."""

    engine_id: str
    address: str


class PeerMissing(msgspec.Struct, frozen=True, array_like=True, tag="missing"):
    """To an engine: there is no connection to the one that it seeks."""

    engine_id: str


class PeerConnection(msgspec.Struct, frozen=True, array_like=True, tag="connection"):
    """To an engine: another one is at the other end of this connection, to give pages (this one is the
    reader) or to have them (this one is the source). engine_id: of the other one. key: of the cluster, where
    both prove that they have it. ciphers: pages travel under a cipher alone."""

    side: Literal["source", "reader"]
    engine_id: str
    key: bytes = b""
    ciphers: bool = False


PeerMessage = PeerReady | PeerAway | PeerGone | PeerLost | PeerSought | PeerMissing | PeerConnection
_decoder: msgspec.msgpack.Decoder[PeerMessage] = msgspec.msgpack.Decoder(PeerMessage)


def receive(sock: socket.socket) -> tuple[PeerMessage, list[int]]:
    """The next message and its descriptors. Raises as packets.receive()."""
    return packets.receive(sock, _decoder, MOST_BYTES, 1)
