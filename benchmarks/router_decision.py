"""Time of one decision of a routing policy: `python benchmarks/router_decision.py`.

100 engines with requests in flight and, for page-aware and least-time, 10^6 known pages. A decision is all
between a request and its engine: which engines serve, and serve well, the choice among them, and its record.
`pages told` is the record's time, later on, for the pages that the engine tells once it has computed the
prompt, and for giving them up again. Of prompts, a beginning is known to all engines, and up to 25,000 tokens
to one."""

from __future__ import annotations

import argparse
import os
import time
import tracemalloc
from collections.abc import Sequence
from statistics import median

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.recovery.ejection import OutlierEjection
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.gateway.engines.routed_engine import Queued, TenantLoad
from firelane.gateway.engines.routing.page_record import PageRecord
from firelane.gateway.engines.routing.routing import POLICIES, Router
from firelane.wire.frames import NewRequest, Ready, Sampling
from firelane.wire.page_names import PAGE_TOKENS, page_names

ENGINES, PAGES = 100, 1_000_000
PAGES_OF_PROMPT = 100
DECISIONS, ROUNDS = 200, 7
TOKENS = (256, 1024, 4096, 16384, 100_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", action="append", choices=tuple(POLICIES))
    parser.add_argument("--tokens", type=int, action="append", help="of a prompt")
    parser.add_argument("--tenants", type=int, default=1, help="whose prompts wait at each engine")
    options = parser.parse_args()
    engines = ReplicaSet([_link(i, options.tenants) for i in range(ENGINES)])
    tracemalloc.start()
    record, known = _record(engines.links)
    print(f"{len(record):,} pages, {tracemalloc.get_traced_memory()[0] / 1e6:.0f} MB")
    tracemalloc.stop()
    for tokens in options.tokens or TOKENS:
        for name in options.policy or POLICIES:
            rounds = [_time(_router(name, record), engines, tokens, known, record) for _ in range(ROUNDS)]
            decision, told = zip(*rounds, strict=True)
            print(f"{name}, {tokens} tokens: {_text(decision)} us; pages told {_text(told)} us", flush=True)


def _text(times: Sequence[float]) -> str:
    return f"{median(times):.1f} ({min(times):.1f}-{max(times):.1f})"


def _router(name: str, record: PageRecord) -> Router:
    return Router(POLICIES[name](record), POLICIES[name](record))


def _link(number: int, tenants: int) -> EngineLink:
    link = EngineLink(name=str(number))
    link.lifecycle.serve(
        Ready(
            **{"protocol": 1, "pid": 1, "model": "m", "vocab_size": 1, "max_model_len": 1, "max_num_seqs": 1},
            **{"block_size": PAGE_TOKENS, "num_blocks": PAGES // ENGINES + 1000},
            **{"weights_bytes": 1, "kv_bytes": 1, "load_s": 1.0},
        )
    )
    load = link.load
    load.sequences, load.step_ms, load.token_ms = 4, 8.0 + number % 3, 0.06
    load.prefill_tokens = sum(100 * (1 + (number + i) % 7) for i in range(4))
    load.queued = TenantLoad(Queued(), Queued())
    for i in range(tenants):
        load.queued.interactive.change(str(i) if i else "", 1.0, load.prefill_tokens // tenants)
    return link


def _flight(prompt: bytes) -> InFlight:
    return InFlight(NewRequest(id=1, prompt=prompt, sampling=Sampling()), None, os.urandom(8))  # pyright: ignore


def _record(links: list[EngineLink]) -> tuple[PageRecord, list[bytes]]:
    """A record of as many pages, and prompts that they are of."""
    record, known = PageRecord(), list[bytes]()
    shared = os.urandom(4 * PAGE_TOKENS)
    for i in range(PAGES // PAGES_OF_PROMPT):
        prompt = shared + os.urandom(4 * PAGE_TOKENS * PAGES_OF_PROMPT)
        record.tell(links[i % ENGINES].load, page_names(b"", prompt), ())
        if i % 50 == 0:
            known.append(prompt)
    return record, known


def _time(
    router: Router, engines: ReplicaSet, tokens: int, known: list[bytes], record: PageRecord
) -> tuple[float, float]:
    """The medians, in microseconds: of a decision, and of what the record is told of its pages."""
    times, told = list[float](), list[float]()
    ejection = OutlierEjection()
    for i in range(DECISIONS):
        flight = _flight((known[i % len(known)] + os.urandom(4 * tokens))[: 4 * tokens])
        began = time.perf_counter()
        serving = [link.load for link in engines.serving]
        route = router.route(flight, ejection.admitted(serving, began))
        times.append(1e6 * (time.perf_counter() - began))
        assert route is not None
        new = page_names(b"", flight.request.prompt)[flight.cached_tokens // PAGE_TOKENS :]
        began = time.perf_counter()
        record.tell(route.engine, new, ())
        record.tell(route.engine, (), new)
        told.append(1e6 * (time.perf_counter() - began))
    return median(times), median(told)


if __name__ == "__main__":
    main()
