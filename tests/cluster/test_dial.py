"""A gateway's connection to a host: what is tried again soon, and what is not."""

from __future__ import annotations

import asyncio

import pytest

from firelane.cluster.addresses import Place, parse_address
from firelane.cluster.dial import dial
from firelane.errors import PeerLostError
from firelane.link.framing import encode
from firelane.link.greeting import Refused, hello, welcome

HELLO = hello(1, "1.2", "abc")


def answer_of(data: bytes):
    """Dial a host that answers a hello with these bytes and closes; return what `dial` makes of it."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(data)
        await writer.drain()
        writer.close()

    async def run():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            address = parse_address("127.0.0.1", server.sockets[0].getsockname()[1])
            dialed = await dial(Place(address, "a-host"), HELLO, None)
            dialed.transport.abort()
            return dialed

    return asyncio.run(run())


@pytest.mark.parametrize("is_passing", [True, False])
def test_a_refusal_says_whether_it_passes(is_passing):
    with pytest.raises(PeerLostError, match="refused: another model") as refused:
        answer_of(encode(Refused("another model", is_passing=is_passing)))
    assert refused.value.is_passing is is_passing


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "closed the connection"),
        (encode(HELLO), "a gateway answers there"),
        (b"\xff" * 64, "greeting"),
    ],
    ids=["nothing", "gateway", "garbage"],
)
def test_other_failures_may_pass(data, reason):
    with pytest.raises(PeerLostError, match=reason) as failed:
        answer_of(data)
    assert failed.value.is_passing


def test_frames_behind_the_welcome_are_kept():
    dialed = answer_of(encode(welcome(7)) + b"frames")
    assert (dialed.number, bytes(dialed.head)) == (7, b"frames")
