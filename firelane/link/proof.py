"""A shared secret that both ends of a link prove to have, to a nonce of the other one and about the facts
that they state: what was said on another connection, or was changed on its way, proves nothing.

Nothing but the envelope is read of a peer that has proven nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import NamedTuple

import firelane
from firelane.errors import PeerLostError
from firelane.link.greeting import (
    Challenge,
    Hello,
    Refused,
    Welcome,
    hello,
    protocol_difference,
    raw,
)
from firelane.link.line import Line, close_all

NONCE_BYTES = 32
KEYS_DIFFER = "the keys of the cluster differ: give all of its hosts the same one"


class Secret(NamedTuple):
    """key: b"" where nobody else can be at the other end. protocol: of the messages behind the greeting."""

    key: bytes
    protocol: int


class Guest(NamedTuple):
    """A peer that has proven to have the secret. nonces: of the end that accepts, then of the one that
    connects."""

    hello: Hello
    nonces: bytes


def proof(key: bytes, side: str, *parts: bytes) -> bytes:
    """A proof that only one who has the key can give, to these nonces and about these facts."""
    digests = (hashlib.sha256(part).digest() for part in parts)
    return hmac.new(key, b"\0".join([side.encode(), *digests]), "sha256").digest()


def admit(line: Line, secret: Secret, facts: object) -> Guest:
    """The first part of the end that accepts; `accept` or `refuse` follows. Raises PeerLostError, whose
    reason the other end is told, and TimeoutError."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    line.send(Challenge(nonce, raw(facts)))
    said = line.receive(Hello)
    why = protocol_difference(hello(secret.protocol, firelane.__version__, None), said)
    nonces = nonce + said.nonce
    if not why and not hmac.compare_digest(said.proof, proof(secret.key, "hello", nonces, bytes(said.facts))):
        why = KEYS_DIFFER
    if why:
        raise refuse(line, why)
    return Guest(said, nonces)


def accept(line: Line, secret: Secret, guest: Guest, facts: object, fds: tuple[int, ...] = ()) -> None:
    """fds: descriptors that travel with the Welcome. Raises PeerLostError, TimeoutError."""
    stated = raw(facts)
    said = proof(secret.key, "welcome", guest.nonces, bytes(stated))
    line.send(Welcome(stated, said), fds)


def refuse(line: Line, reason: str) -> PeerLostError:
    """Tell the other end; returns the error to be raised here. Raises PeerLostError, TimeoutError."""
    line.send(Refused(reason))
    return PeerLostError(reason, is_passing=False)


def greet(line: Line, secret: Secret, challenge: Challenge, facts: object) -> bytes:
    """Say Hello; returns both nonces. Raises PeerLostError, TimeoutError."""
    ours = secrets.token_bytes(NONCE_BYTES)
    nonces, stated = challenge.nonce + ours, raw(facts)
    line.send(
        Hello(
            protocol=secret.protocol,
            version=firelane.__version__,
            facts=stated,
            nonce=ours,
            proof=proof(secret.key, "hello", nonces, bytes(stated)),
        )
    )
    return nonces


def answer(line: Line, secret: Secret, nonces: bytes, most_fds: int = 0) -> tuple[Welcome, list[int]]:
    """The answer of the end that accepts to `greet`, and the descriptors that come with it, which the caller
    closes. Raises PeerLostError where this end is refused, or the other one has another secret; and
    TimeoutError."""
    said, fds = line.receive_with(Welcome | Refused, most_fds)
    if isinstance(said, Refused):
        raise PeerLostError(said.reason, is_passing=said.is_passing)
    if not hmac.compare_digest(said.proof, proof(secret.key, "welcome", nonces, bytes(said.facts))):
        close_all(fds)
        raise PeerLostError(KEYS_DIFFER, is_passing=False)
    return said, fds
