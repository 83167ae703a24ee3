"""The host of an engine: lets gateways on other hosts in, and hands their connections to the engine.

The engine process is in its sandbox, without network. The process that has started it listens, checks
certificates and hellos, and relays frames to a socket pair, whose other end it passes to the engine through
its acceptor (engine.channels): to the engine all gateways are of this machine.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl

from firelane.cluster.addresses import Address
from firelane.cluster.greeting import HELLO_S, Greeting, peer_name
from firelane.cluster.relay import Relay
from firelane.errors import MachineError
from firelane.wire.hello import Hello, Refusal, Welcome, encode_hello
from firelane.wire.numbers import NUMBER_BYTES

log = logging.getLogger(__name__)
MOST_GATEWAYS = 128
MOST_GREETINGS = 64
"""Connections that have not said hello yet."""


class EngineHost:
    """The Greeter of an engine. Owns the listening socket, all connections, and the acceptor of the present
    engine. hello: what a gateway has to say."""

    def __init__(self, hello: Hello, context: ssl.SSLContext | None) -> None:
        self._hello, self._context = hello, context
        self._acceptor: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._numbers = 0
        self._greetings: set[Greeting] = set()
        self._relays: dict[Relay, asyncio.Task[None]] = {}
        self._is_ending = False

    async def listen(self, address: Address) -> int:
        """Returns the port. Raises MachineError."""
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                lambda: Greeting(self),
                *address,
                ssl=self._context,
                ssl_handshake_timeout=HELLO_S if self._context is not None else None,
            )
        except OSError as error:
            raise MachineError(
                f"cannot listen at {address}: {error.strerror or error}: choose another --host or --port"
            ) from error
        self._server = server
        return int(server.sockets[0].getsockname()[1])

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
        self._is_ending = True
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        self.end_greetings()
        for greeting in list(self._greetings):
            greeting.close()
        tasks = list(self._relays.values())
        for relay in list(self._relays):
            relay.close()
        await asyncio.gather(*tasks)
        self._drop_acceptor()

    # ---- called by greetings

    def begin(self, greeting: Greeting) -> bool:
        if self._is_ending or len(self._greetings) >= MOST_GREETINGS:
            return False
        self._greetings.add(greeting)
        return True

    def end(self, greeting: Greeting) -> None:
        self._greetings.discard(greeting)

    def welcome(self, hello: Hello, transport: asyncio.Transport, head: bytes) -> Refusal | None:
        refusal = self._judge(hello)
        if refusal is not None or self._acceptor is None:
            return refusal or Refusal("the engine is being started", is_passing=True)
        ours, theirs = socket.socketpair()
        number = self._numbers + 1
        with theirs:
            try:
                data = number.to_bytes(NUMBER_BYTES, "little")
                socket.send_fds(self._acceptor, [data], [theirs.fileno()])
            except OSError as error:
                ours.close()
                return Refusal(f"the engine takes no connection: {error}", is_passing=True)
        self._numbers = number
        log.info("gateway_connected number=%d address=%s", number, peer_name(transport))
        transport.write(encode_hello(Welcome(number)))
        relay = Relay(transport, self._forget)
        self._relays[relay] = asyncio.ensure_future(_begin(relay, ours, head))
        return None

    def _judge(self, hello: Hello) -> Refusal | None:
        own = self._hello
        if hello.protocol != own.protocol:
            return Refusal(
                f"the engine speaks protocol {own.protocol} (Firelane {own.version}), the gateway "
                f"{hello.protocol} (Firelane {hello.version}): install the same version of Firelane on both"
            )
        if hello.model != own.model:
            return Refusal(
                "the engine has another model: config.json or tokenizer.json differ from the gateway's"
            )
        if len(self._relays) >= MOST_GATEWAYS:
            return Refusal(f"{MOST_GATEWAYS} gateways are connected already", is_passing=True)
        return None

    def _forget(self, relay: Relay) -> None:
        if self._relays.pop(relay, None) is not None:
            log.info("gateway_gone left=%d", len(self._relays))

    def _drop_acceptor(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None


async def _begin(relay: Relay, inner: socket.socket, head: bytes) -> None:
    try:
        await relay.begin(inner, head)
    except OSError as error:
        log.warning("gateway_not_connected error=%r", str(error))
