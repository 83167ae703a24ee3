"""Time of one decision of a routing policy: `python benchmarks/router_decision.py`.

100 engines with requests in flight and, for page-aware and least-time, 10^6 known pages. A decision is
`choose` and `sent`; of prompts, a beginning is known to all engines, and up to 25,000 tokens to one."""

from __future__ import annotations

import argparse
import os
import time
import tracemalloc
from statistics import median

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.least_time import LeastTime
from firelane.gateway.engines.link import EngineLink
from firelane.gateway.engines.page_record import PAGE_TOKENS, PageRecord, page_names
from firelane.gateway.engines.policies import PageAware, Policy
from firelane.gateway.engines.routing import POLICIES
from firelane.wire.frames import NewRequest, Ready, Sampling

ENGINES, PAGES = 100, 1_000_000
PAGES_OF_PROMPT = 100
DECISIONS = 200
RECORDING = {"page-aware": PageAware, "least-time": LeastTime}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", action="append", choices=tuple(POLICIES))
    links = [_link(i) for i in range(ENGINES)]
    for name in parser.parse_args().policy or POLICIES:
        if name not in RECORDING:
            print(f"{name}: {_time(POLICIES[name](), links, 4096):.1f} us")
            continue
        tracemalloc.start()
        record, known = _record(links)
        print(f"{name}: {len(record):,} pages, {tracemalloc.get_traced_memory()[0] / 1e6:.0f} MB")
        tracemalloc.stop()
        for tokens in (256, 1024, 4096, 16384, 100_000):
            policy = RECORDING[name](record)
            print(f"{name}, {tokens} tokens: {_time(policy, links, tokens, known):.1f} us")


def _link(number: int) -> EngineLink:
    link = EngineLink(name=str(number))
    link.serve(
        Ready(
            **{"protocol": 1, "pid": 1, "model": "m", "vocab_size": 1, "max_model_len": 1, "max_num_seqs": 1},
            **{"block_size": PAGE_TOKENS, "num_blocks": PAGES // ENGINES + 1000},
            **{"weights_bytes": 1, "kv_bytes": 1, "load_s": 1.0},
        )
    )
    for i in range(4):
        link.load.add(_flight(os.urandom(400 * (1 + (number + i) % 7))))
    return link


def _flight(prompt: bytes) -> InFlight:
    return InFlight(NewRequest(id=1, prompt=prompt, sampling=Sampling()), None, os.urandom(8))  # pyright: ignore


def _record(links: list[EngineLink]) -> tuple[PageRecord, list[bytes]]:
    """A record of as many pages, and prompts that they are of."""
    record, known = PageRecord(), list[bytes]()
    shared = os.urandom(4 * PAGE_TOKENS)
    for i in range(PAGES // PAGES_OF_PROMPT):
        prompt = shared + os.urandom(4 * PAGE_TOKENS * PAGES_OF_PROMPT)
        record.add(links[i % ENGINES], page_names(b"", prompt))
        if i % 50 == 0:
            known.append(prompt)
    return record, known


def _time(policy: Policy, links: list[EngineLink], tokens: int, known: list[bytes] | None = None) -> float:
    """The median, in microseconds."""
    times: list[float] = []
    for i in range(DECISIONS):
        prompt = b"" if known is None else known[i % len(known)]
        flight = _flight((prompt + os.urandom(4 * tokens))[: 4 * tokens])
        began = time.perf_counter()
        policy.sent(flight, policy.choose(flight, links))
        times.append(1e6 * (time.perf_counter() - began))
    return median(times)


if __name__ == "__main__":
    main()
