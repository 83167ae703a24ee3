"""HeadHost: the host of the engine, number 0, as another host of the group sees it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from firelane import env
from firelane.backends.cpu.link import LinkSizes, RankWires
from firelane.backends.cpu.ranks.hosts.attach import (
    Ended,
    HostFacts,
    Listener,
    Loaded,
    Start,
    WireFacts,
    cluster_key,
    connect,
)
from firelane.backends.cpu.ranks.hosts.others import OtherHosts
from firelane.backends.cpu.ranks.hosts.steps import HEADER_INTS, body_bytes, decode
from firelane.backends.cpu.ranks.hosts.wires import HostWires
from firelane.contract import SlotState, StepInputs, StepLimits
from firelane.engine_config import HostsConfig
from firelane.errors import PeerLostError, UsageError
from firelane.link.greeting import Refused, Welcome, facts_of
from firelane.link.line import Line
from firelane.parallel.hosts import HostLayout

ANSWER: Any = Welcome | Refused
log = logging.getLogger(__name__)


class HeadHost(OtherHosts):
    """The connection to host 0, and wires to all that have ranks which this host's exchange rows with."""

    def __init__(self, hosts: HostLayout, place: HostsConfig, settings: env.Environment) -> None:
        """Raises UsageError for a number that no other host has, and where host 0 is not found."""
        self._hosts, self._place = hosts, place
        if not 0 < place.own < hosts.count:
            raise UsageError(
                f"--node-rank {place.own}: with --nnodes {hosts.count} that of another host than the first "
                f"is 1 to {hosts.count - 1}"
            )
        self._key = cluster_key(place, settings)
        self._line = self._connected()
        self._listener = self._listen()
        self._wires: HostWires | None = None
        self._start: Start | None = None
        self._group = ""

    def attach(self, mine: HostFacts) -> Mapping[str, int]:
        """Raises UsageError where host 0 refuses this one, PeerLostError where it is gone."""
        self._line.send(msgspec.structs.replace(mine, port=self._listener.port if self._listener else 0))
        answer = self._line.receive(ANSWER)
        if isinstance(answer, Refused):
            raise UsageError(f"host 0 refuses this one: {answer.reason}")
        log.info("rank_host_waits group of %d hosts", self._hosts.count)
        self._start, self._group = self._line.receive(Start), facts_of(answer, str)
        return self._start.limits

    def start(self, limits: StepLimits, sizes: LinkSizes) -> tuple[LinkSizes, Mapping[int, RankWires]]:
        del limits, sizes  # host 0 has found them
        assert self._start is not None, "attach() comes first"
        addresses = [(self._place.address, self._place.port), *self._start.addresses[1:]]
        self._wires = HostWires(self._hosts, self._place.own, self._group)
        self._wires.open(addresses, self._listener, self._key, self._deadline_s, self._check)
        return LinkSizes(**self._start.link_sizes), self._wires.of_ranks()

    def tell_loaded(self, weights_bytes: int, kv_bytes: int) -> None:
        """Raises PeerLostError."""
        self._line.send(Loaded(weights_bytes, kv_bytes))

    def leave(self, why: str) -> None:
        """Tell host 0, if it is there, for what reason this one leaves the group."""
        with suppress(PeerLostError):
            self._line.send(Ended(why))

    def receive_step(self, inputs: StepInputs, state: SlotState) -> None:
        """Wait for the next step, and write it into `inputs` and into the state that it reads. Raises
        PeerLostError."""
        header = self._line.receive_bytes(4 * HEADER_INTS)
        decode(header, self._line.receive_bytes(body_bytes(header)), inputs, state)

    def hang_up(self) -> None:
        """Whoever waits for a step waits no longer. Idempotent."""
        self._line.close()

    def close(self) -> None:
        self.hang_up()
        if self._listener is not None:
            self._listener.close()
        if self._wires is not None:
            self._wires.close()

    def _connected(self) -> Line:
        place = self._place
        try:
            line = connect((place.address, place.port), self._key, self._deadline_s, WireFacts())
        except PeerLostError as error:
            raise UsageError(
                f"--master-addr {place.address}:{place.port}: no host 0 there for {place.timeout_s:g} s "
                f"({error})"
            ) from error
        line.name = f"host 0 ({line.name})"
        return line

    def _listen(self) -> Listener | None:
        """For hosts of higher numbers that have ranks which this host's exchange rows with."""
        others = {host for wire in self._hosts.wires() for host in map(self._hosts.host_of, wire.ranks)}
        here = self._line.call(lambda sock: sock.getsockname()[0])
        return Listener(here, 0, self._key) if max(others, default=0) > self._place.own else None

    def _check(self) -> None:
        """Before the first step host 0 has nothing to say, unless it is gone."""
        if self._line.has_news:
            raise PeerLostError(f"{self._line.name} has closed the connection")

    @property
    def _deadline_s(self) -> float:
        return time.monotonic() + self._place.timeout_s
