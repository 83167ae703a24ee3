"""The other hosts of a group of ranks, as the engine's host sees them."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from firelane import env
from firelane.backends.cpu.link import LinkSizes, RankWires
from firelane.backends.cpu.ranks.hosts.attach import (
    Ended,
    HostFacts,
    Listener,
    Loaded,
    Start,
    cluster_key,
    difference,
)
from firelane.backends.cpu.ranks.hosts.others import OtherHosts
from firelane.backends.cpu.ranks.hosts.steps import StepEncoder
from firelane.backends.cpu.ranks.hosts.wires import HostWires
from firelane.contract import SlotState, StepInputs, StepLimits
from firelane.engine_config import HostsConfig
from firelane.errors import MachineError, PeerLostError
from firelane.link.greeting import Refused, welcome
from firelane.link.line import Line
from firelane.native.host_memory import available_bytes
from firelane.parallel.hosts import HostLayout

LIMITS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_output_rows",
    "max_model_len",
    "block_size",
    "num_blocks",
    "num_snapshots",
    "num_spares",
    "state_bytes",
)
"""Fields of StepLimits that follow from host 0's options and all hosts' memory."""
REPORT: Any = Loaded | Ended
log = logging.getLogger(__name__)


class TcpHosts(OtherHosts):
    """Hosts that attach over TCP. The first rank of each has a connection for steps here."""

    def __init__(self, hosts: HostLayout, config: HostsConfig, settings: env.Environment) -> None:
        """Raises UsageError without a secret, MachineError where nobody can listen."""
        self._hosts, self._config = hosts, config
        self._key = cluster_key(config, settings)
        self._group = secrets.token_hex(16)
        self._wires = HostWires(hosts, 0, self._group)
        self._attached: dict[int, tuple[HostFacts, Line]] = {}
        self._encoder: StepEncoder | None = None
        self._limits: StepLimits | None = None
        self._is_closed = False
        self._refusal = ""
        self._listener = Listener(config.address, config.port, self._key)

    def attach(self, mine: HostFacts) -> Mapping[str, int]:
        log.info("rank_hosts_awaited count=%d address=%s:%d", self._hosts.count - 1, *self._place)
        deadline_s = time.monotonic() + self._config.timeout_s
        while not self._are_all_here():
            try:
                line, _ = self._listener.accept(deadline_s)
                self._consider(mine, line)
            except TimeoutError:
                raise MachineError(self._missing()) from None
            except PeerLostError:
                continue
        return {}

    @property
    def available_bytes(self) -> int:
        return min(available_bytes(), *(hello.available_bytes for hello, _ in self._attached.values()))

    def start(self, limits: StepLimits, sizes: LinkSizes) -> tuple[LinkSizes, Mapping[int, RankWires]]:
        self._limits = limits
        places = [("", 0)] * self._hosts.count
        for host, (hello, line) in self._attached.items():
            places[host] = line.name, hello.port
        start = Start(
            limits={name: getattr(limits, name) for name in LIMITS},
            link_sizes=asdict(sizes),
            addresses=places,
        )
        for host, (_, line) in self._attached.items():
            with self._named(host):
                line.send(start)
        deadline_s = time.monotonic() + self._config.timeout_s
        self._wires.open(places, self._listener, self._key, deadline_s, self._check)
        self._listener.close()
        return sizes, self._wires.of_ranks()

    def await_ready(self, on_end: Callable[[str], None]) -> None:
        for host, (_, line) in self._attached.items():
            found = self._next_of(host, line)
            if isinstance(found, Ended):
                raise MachineError(f"{self._name(host)}: {found.why}")
            self.weights_bytes += found.weights_bytes
            self.kv_bytes += found.kv_bytes
        for host, (_, line) in self._attached.items():
            threading.Thread(target=self._watch, args=(host, line, on_end), daemon=True).start()

    def hand_out(self, inputs: StepInputs, state: SlotState) -> None:
        if self._encoder is None:
            assert self._limits is not None
            self._encoder = StepEncoder(self._limits, state)
        message = self._encoder.encode(inputs)
        for host, (_, line) in self._attached.items():
            with self._named(host):
                line.send_bytes(message)

    def close(self) -> None:
        self._is_closed = True
        self._listener.close()
        for _, line in self._attached.values():
            line.close()
        self._wires.close()

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def _place(self) -> tuple[str, int]:
        return self._config.address, self.port

    def _are_all_here(self) -> bool:
        """Without those that have gone while the others were awaited: such may come again."""
        for host, (_, line) in list(self._attached.items()):
            if line.has_news:
                log.warning("rank_host_left host=%d address=%s", host, line.name)
                line.close()
                del self._attached[host]
        return len(self._attached) == self._hosts.count - 1

    def _check(self) -> None:
        """Hosts that are not loaded yet have nothing to say, unless they leave. Raises MachineError."""
        for host, (_, line) in self._attached.items():
            if line.has_news:
                found = self._next_of(host, line)
                raise MachineError(f"{self._name(host)}: {getattr(found, 'why', 'it did not wait')}")

    def _consider(self, mine: HostFacts, line: Line) -> None:
        """Take the host at the other end, or tell it why not. Raises PeerLostError."""
        hello = line.receive(HostFacts)
        self._are_all_here()
        why = difference(mine, hello)
        if not why and hello.host in self._attached:
            taken = self._attached[hello.host][1].name
            why = f"--node-rank {hello.host} is there already, from {taken}: give each host its own"
        line.send(Refused(why) if why else welcome(self._group))
        if why:
            self._refusal = f"; one at {line.name} was refused: {why}"
            log.warning("rank_host_refused address=%s why=%r", line.name, why)
            line.close()
        else:
            log.info("rank_host_attached host=%d address=%s", hello.host, line.name)
            self._attached[hello.host] = hello, line

    def _missing(self) -> str:
        """In words for people."""
        self._are_all_here()
        away = [host for host in range(1, self._hosts.count) if host not in self._attached]
        names = ", ".join(map(self._name, away))
        address, port = self._place
        refusal = self._refusal + self._listener.refusal
        return (
            f"{names} did not attach within {self._config.timeout_s:g} s: start each there with --nnodes "
            f"{self._hosts.count}, its --node-rank and --master-addr {address}:{port}{refusal}"
        )

    def _name(self, host: int) -> str:
        ranks = self._hosts.ranks_of(host)
        of = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        return f"host {host} ({of} of the model)"

    @contextmanager
    def _named(self, host: int) -> Generator[None]:
        """Raises MachineError with the host's name where it is lost inside."""
        try:
            yield
        except PeerLostError as error:
            raise MachineError(f"{self._name(host)} is gone: {error}") from error

    def _next_of(self, host: int, line: Line) -> Loaded | Ended:
        with self._named(host):
            return line.receive(REPORT)

    def _watch(self, host: int, line: Line, on_end: Callable[[str], None]) -> None:
        """Until it leaves, which it may say why."""
        try:
            found = self._next_of(host, line)
            why = f"{self._name(host)}: {found.why}" if isinstance(found, Ended) else ""
        except MachineError as error:
            why = str(error)
        if not self._is_closed:
            on_end(why)
