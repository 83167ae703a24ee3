"""Decode of one request in turns with a peer, seconds apart, each in a process of its own."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lossless_figures import Conditions, Peer
from turns_vs_peers import WORKLOADS, Engine, load_peers

WORKLOAD = "decode-1"


def measure_peer(
    model_dir: Path, peers_script: Path, *, peer: str, forms: Sequence[str], rounds: int
) -> Peer:
    """`forms`: of Firelane, one process each."""
    peers, workload = load_peers(peers_script), WORKLOADS[WORKLOAD]
    seconds: dict[str, list[float]] = {name: [] for name in (*forms, peer)}
    with tempfile.TemporaryDirectory() as scratch:
        engines: dict[str, Engine] = {}
        for name in seconds:
            directory = Path(scratch, name)  # each has a script of its own
            directory.mkdir()
            kind, form = ("firelane", name) if name in forms else (name, "auto")
            engines[name] = Engine(kind, peers, str(model_dir), directory, weights=form)
        try:
            for name, engine in engines.items():
                print(f"{name}: ready in {engine.wait('READY'):.1f} s", file=sys.stderr, flush=True)
            for _ in range(rounds):
                for name, engine in engines.items():
                    seconds[name].append(engine.run(workload))
        finally:
            for engine in engines.values():
                engine.stop()
    return Peer(conditions=Conditions.now(), peer=peer, output_tokens=workload[2], seconds=seconds)
