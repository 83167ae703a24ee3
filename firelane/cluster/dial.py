"""A gateway's connection to the host of an engine, up to the end of the greeting."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

from firelane.cluster.addresses import Place
from firelane.errors import FrameError, PeerLostError
from firelane.link.greeting import Greeting, Hello, Refused, Welcome, facts_of
from firelane.link.opening import Opening

DIAL_S = 10.0
"""For the connection, TLS and the greeting together."""


@dataclass(frozen=True)
class Dialed:
    """A connection after the greeting, which does not read. number: of it; head: what has come of its frames;
    more may come in the same turn of the loop."""

    transport: asyncio.Transport
    number: int
    head: bytearray


async def dial(place: Place, hello: Hello, context: ssl.SSLContext | None) -> Dialed:
    """Raises PeerLostError."""
    opening = Opening()
    try:
        async with asyncio.timeout(DIAL_S):
            answer = await _answer(opening, place, hello, context)
        return Dialed(opening.transport, _number(answer), opening.head)
    except TimeoutError as error:
        opening.abort()
        raise PeerLostError(f"no answer for {DIAL_S:g} s") from error
    except BaseException:
        opening.abort()
        raise


async def _answer(opening: Opening, place: Place, hello: Hello, context: ssl.SSLContext | None) -> Greeting:
    """Raises PeerLostError."""
    name = place.name if context is not None else None
    loop = asyncio.get_running_loop()
    try:
        await loop.create_connection(lambda: opening, *place.address, ssl=context, server_hostname=name)
    except (OSError, ssl.SSLError) as error:
        raise PeerLostError(f"no connection: {error}") from error
    opening.send(hello)
    try:
        return await opening.receive()
    except FrameError:
        raise
    except PeerLostError as error:
        if context is None:
            raise
        # TLS 1.3 refuses a client's certificate behind the handshake
        hint = "it may not trust this gateway's certificate, or that has expired"
        raise PeerLostError(f"{error}: {hint}") from error


def _number(answer: Greeting) -> int:
    """The connection's. Raises PeerLostError where it is none."""
    if isinstance(answer, Refused):
        raise PeerLostError(f"refused: {answer.reason}", is_passing=answer.is_passing)
    if not isinstance(answer, Welcome):
        raise PeerLostError("a gateway answers there, not an engine's host")
    return facts_of(answer, int)
