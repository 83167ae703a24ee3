"""The host of an engine: lets gateways on other hosts in, and hands their connections to the engine.

The engine process is in its sandbox, without network. The process that has started it listens, checks
certificates and hellos, and relays frames to a socket pair, whose other end it passes to the engine through
its acceptor (engine.channels): to the engine all gateways are of this machine.
"""

from __future__ import annotations

import asyncio
import logging
import socket

from firelane.cluster.addresses import Address
from firelane.cluster.relay import ConnectionRelay
from firelane.errors import MachineError
from firelane.link.accepting import GreetingServer, peer_name
from firelane.link.greeting import Hello, Refused, facts_of, protocol_difference, welcome
from firelane.link.listening import listening_sockets
from firelane.link.opening import Opening
from firelane.link.tls import ContextSource, no_context
from firelane.wire.numbers import NUMBER_BYTES

log = logging.getLogger(__name__)
MOST_GATEWAYS = 128


class EngineHost:
    """Owns the listening sockets, all connections, and the acceptor of the present engine. hello: what a
    gateway has to say."""

    def __init__(self, hello: Hello, context: ContextSource = no_context) -> None:
        self._hello, self._context = hello, context
        self._acceptor: socket.socket | None = None
        self._server: GreetingServer | None = None
        self._numbers = 0
        self._relays: dict[ConnectionRelay, asyncio.Task[None]] = {}

    async def listen(self, address: Address) -> int:
        """Returns the port. Raises MachineError."""
        try:
            sockets = await asyncio.to_thread(listening_sockets, *address)
        except OSError as error:
            raise MachineError(
                f"cannot listen at {address}: {error.strerror or error}: choose another --host or --port"
            ) from error
        self._server = GreetingServer(sockets, self._consider, self._context)
        return int(sockets[0].getsockname()[1])

    def take_engine(self, acceptor: socket.socket) -> None:
        """Another engine, to which connections go from now on. Takes over the socket."""
        self._drop_acceptor()
        acceptor.setblocking(False)
        self._acceptor = acceptor

    def lose_engine(self) -> None:
        """There is none for now."""
        self._drop_acceptor()

    def end_greetings(self) -> None:
        """Nobody is let in any more; who is in stays."""
        if self._server is not None:
            self._server.stop()

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
        tasks = list(self._relays.values())
        for relay in list(self._relays):
            relay.close()
        await asyncio.gather(*tasks)
        self._drop_acceptor()

    def _consider(self, hello: Hello, opening: Opening) -> Refused | None:
        """Have the gateway's frames go to the engine, or say why not. Raises FrameError."""
        refused = self._judge(hello)
        if refused is not None or self._acceptor is None:
            return refused or Refused("the engine is being started", is_passing=True)
        ours, theirs = socket.socketpair()
        number = self._numbers + 1
        with theirs:
            try:
                data = number.to_bytes(NUMBER_BYTES, "little")
                socket.send_fds(self._acceptor, [data], [theirs.fileno()])
            except OSError as error:
                ours.close()
                return Refused(f"the engine takes no connection: {error}", is_passing=True)
        self._numbers = number
        sock = opening.transport.get_extra_info("socket")
        log.info("gateway_connected number=%d address=%s", number, peer_name(sock))
        opening.send(welcome(number))
        relay = ConnectionRelay(opening.transport, self._forget)
        self._relays[relay] = asyncio.ensure_future(_begin(relay, ours, bytes(opening.head)))
        return None

    def _judge(self, hello: Hello) -> Refused | None:
        difference = protocol_difference(self._hello, hello)
        if difference:
            return Refused(difference)
        if facts_of(hello, str) != facts_of(self._hello, str):
            return Refused(
                "the engine has another model: config.json or tokenizer.json differ from the gateway's"
            )
        if len(self._relays) >= MOST_GATEWAYS:
            return Refused(f"{MOST_GATEWAYS} gateways are connected already", is_passing=True)
        return None

    def _forget(self, relay: ConnectionRelay) -> None:
        if self._relays.pop(relay, None) is not None:
            log.info("gateway_gone left=%d", len(self._relays))

    def _drop_acceptor(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None


async def _begin(relay: ConnectionRelay, inner: socket.socket, head: bytes) -> None:
    try:
        await relay.begin(inner, head)
    except OSError as error:
        log.warning("gateway_not_connected error=%r", str(error))
