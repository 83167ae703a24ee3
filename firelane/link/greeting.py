"""The first messages of a link between processes that may be of different versions of Firelane.

    who accepts    Challenge  where both have to prove that they have a secret (proof.py)
    who connects   Hello      protocol of the messages that follow, version of Firelane, facts to be compared
    who accepts    Welcome    facts of its own; the messages follow
                   Refused    why not; the connection ends

They are msgpack maps: any version of Firelane can read those of any other one, so that the reason of a
refusal arrives. The facts are read once the protocols are the same.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from firelane.errors import FrameError
from firelane.link import framing

MOST_BYTES = 1 << 14
"""Bytes of a greeting whose sender has proven nothing yet, at most."""
FactsT = TypeVar("FactsT")


class Challenge(msgspec.Struct, frozen=True, tag="challenge"):
    """A number that nobody has used before, to be proven to."""

    nonce: bytes
    facts: msgspec.Raw


class Hello(msgspec.Struct, frozen=True, tag="hello", kw_only=True):
    """From the end that connects. version: of Firelane. nonce, proof: where there was a Challenge."""

    protocol: int
    version: str
    facts: msgspec.Raw
    nonce: bytes = b""
    proof: bytes = b""


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    facts: msgspec.Raw
    proof: bytes = b""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """is_passing: it is worth asking again soon."""

    reason: str
    is_passing: bool = False


Greeting = Hello | Welcome | Refused
_decoder: msgspec.msgpack.Decoder[Greeting] = msgspec.msgpack.Decoder(Greeting)


def hello(protocol: int, version: str, facts: object) -> Hello:
    return Hello(protocol=protocol, version=version, facts=raw(facts))


def welcome(facts: object) -> Welcome:
    return Welcome(raw(facts))


def raw(facts: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(facts))


def facts_of(message: Challenge | Hello | Welcome, kind: type[FactsT]) -> FactsT:
    """Raises FrameError."""
    return framing.decode(msgspec.msgpack.Decoder(kind), bytes(message.facts))


def protocol_difference(own: Hello, other: Hello) -> str:
    """The reason why the two ends do not understand each other; "" where they do."""
    if own.protocol == other.protocol:
        return ""
    return (
        f"this end speaks protocol {own.protocol} (Firelane {own.version}), the other end {other.protocol} "
        f"(Firelane {other.version}): install the same version of Firelane on both"
    )


def take_greeting(data: bytes, most_bytes: int = MOST_BYTES) -> tuple[Greeting, int] | None:
    """The greeting at the beginning, and where it ends; None where some of it is missing. Raises FrameError
    for what is none."""
    try:
        return framing.take(_decoder, data, most_bytes)
    except FrameError as error:
        raise FrameError(f"not a greeting: {error}: no Firelane peer, or TLS on one side alone") from error
