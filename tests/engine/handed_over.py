"""Two engines as one: the first one computes prompts, the second one goes on with their pages."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import pytest

from firelane.engine.pages import page_waits
from firelane.gateway.engines.in_flight import InFlight
from firelane.kv.transfer.exported import ExportedPool
from firelane.kv.transfer.peers import PeerTransfer
from firelane.wire.frames import NewRequest
from tests.engine.driver import Driver
from tests.kv.shared_pages import copied


@contextmanager
def connected(
    source: Driver, reader: Driver, *, copies: bool = False
) -> Iterator[tuple[PeerTransfer, PeerTransfer]]:
    """The transfers of both, whose pages lie where their executors say: the second has them from the first.
    copies: they are no arrays."""
    transfers = tuple(transfer_of(d, copies=copies) for d in (source, reader))
    theirs, ours = socket.socketpair()
    transfers[0].export(theirs)
    transfers[1].attach(ours)
    reader.core.have_pages_from(transfers[1])
    try:
        yield transfers
    finally:
        for transfer in reversed(transfers):
            transfer.close()


def transfer_of(d: Driver, *, copies: bool) -> PeerTransfer:
    pages, states = d.executor.page_memory, d.executor.state_memory
    if copies:
        pages, states = copied(pages), copied(states)
    return PeerTransfer(ExportedPool(pages, d.core.kv, "one model", states=states))


class HandedOver:
    """The interface of a Driver over a prefill engine and a decode engine, which what has output behind its
    first token goes through, however short, as the gateway sends it."""

    def __init__(self, prefill: Driver, decode: Driver, prefill_id: str) -> None:
        self.prefill, self.decode, self._prefill_id = prefill, decode, prefill_id
        self.limits = prefill.limits
        self.core = prefill.core
        self._flights: dict[int, InFlight] = {}
        self._aborted: set[int] = set()
        self.handed_over = 0

    def submit(self, *requests: NewRequest) -> None:
        for request in requests:
            flight = InFlight(request, None)
            flight.hands_over = request.pooling is None and request.sampling.max_tokens > 1
            self._flights[request.id] = flight
            self.prefill.submit(flight.continuation())

    def abort(self, request_id: int) -> None:
        """Abort a request at both engines: one that was handed over runs at the second."""
        self.prefill.abort(request_id)
        self.decode.abort(request_id)

    def step(self) -> None:
        self.prefill.step()
        for request_id, flight in list(self._flights.items()):
            if request_id in self.prefill.rejected:
                del self._flights[request_id]
            elif request_id in self.prefill.reasons:
                del self._flights[request_id]
                if flight.goes_on(self.prefill.reasons[request_id]):
                    self._hand_over(flight)
        self.decode.step()

    def _hand_over(self, flight: InFlight) -> None:
        del self.prefill.reasons[flight.id]
        flight.tokens.extend(self.prefill.tokens[flight.id])
        flight.hands_over, flight.pages_at = False, self._prefill_id
        self.handed_over += 1
        self.decode.submit(flight.continuation())

    def run(self, max_steps: int = 20_000) -> HandedOver:
        for _ in range(max_steps):
            self.step()
            if not self._flights and self.decode.core.is_idle and not self.decode.channel.arrived:
                break
        self.prefill.run()
        self.decode.run()
        return self

    @property
    def tokens(self) -> dict[int, list[int]]:
        return self._joined(lambda d: d.tokens)

    @property
    def logprobs(self) -> dict[int, list]:
        return self._joined(lambda d: d.logprobs)

    @property
    def reasons(self) -> dict[int, str]:
        return self.prefill.reasons | self.decode.reasons

    @property
    def rejected(self) -> dict[int, str]:
        return self.prefill.rejected | self.decode.rejected

    @property
    def embeddings(self) -> dict[int, bytes]:
        return self.prefill.embeddings

    @property
    def cached(self) -> dict[int, int]:
        """The cached tokens by request, as the prefill engine counts them, which is what clients are told."""
        return self.prefill.cached

    def _joined(self, of: Callable[[Driver], dict[int, list]]) -> dict[int, list]:
        parts = of(self.prefill), of(self.decode)
        ids = dict.fromkeys(chain(*parts))
        return {i: [*parts[0].get(i, []), *parts[1].get(i, [])] for i in ids}


@contextmanager
def handed_over(prefill: Driver, decode: Driver, *, copies: bool = False) -> Iterator[HandedOver]:
    """Both as one, with as much patience for pages as the slowest machine needs. copies: as in connected."""
    with (
        pytest.MonkeyPatch.context() as patch,
        connected(prefill, decode, copies=copies) as (source, _),
    ):
        for name in ("UNKNOWN_S", "LEAST_S", "MOST_S"):
            patch.setattr(page_waits, name, 120.0)
        yield HandedOver(prefill, decode, source.engine_id)
