"""Firelane's offline workloads beside those of its peers, on one checkpoint: one table with the ratio to the
best peer.

    run_offline_vs_peers.py MODEL --peers-json FILE       figures of the peers, measured before
    run_offline_vs_peers.py MODEL --peers-script PATH     measure them now: PATH run MODEL --out FILE

Other options go to `firelane bench offline`. The peers' JSON maps each peer to {workload: tokens/s}, with the
names of `firelane bench offline`. Speeds of a shared machine drift: measure the peers right before or after,
and read the ratios.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from firelane import __version__
from firelane.bench.table import format_table

Peers = dict[str, dict[str, float]]


def measure_peers(script: Path, model: str, directory: Path) -> Peers:
    out = directory / "peers.json"
    subprocess.run([sys.executable, str(script), "run", model, "--out", str(out)], check=True)
    return json.loads(out.read_text())


def measure_firelane(model: str, extra: list[str], directory: Path) -> dict[str, Any]:
    out = directory / "firelane.json"
    command = [sys.executable, "-m", "firelane", "bench", "offline", model, "--json", str(out), *extra]
    subprocess.run(command, check=True)
    return json.loads(out.read_text())


def compare(ours: dict[str, Any], peers: Peers) -> str:
    """One row a workload: our rate, each peer's, the ratio to the best peer, and the share of the machine's
    limits."""
    limits = ours["limits"]
    peak = limits["dot_gflops"] or limits["fma_gflops"]
    rows: list[list[str]] = []
    for result in ours["workloads"]:
        theirs = {peer: figures.get(result["name"]) for peer, figures in peers.items()}
        known = [rate for rate in theirs.values() if rate]
        rows.append(
            [
                result["name"],
                f"{result['tokens_per_s']:.1f}",
                *(f"{rate:.1f}" if rate else "-" for rate in theirs.values()),
                f"{result['tokens_per_s'] / max(known):.2f}x" if known else "-",
                f"{result['gbps'] / limits['read_gbps']:.0%}",
                f"{result['gflops'] / peak:.0%}",
            ]
        )
    header = ["workload, tok/s", "firelane", *peers, "to best peer", "of read limit", "of peak"]
    return format_table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--peers-json", type=Path, metavar="FILE")
    source.add_argument("--peers-script", type=Path, metavar="PATH")
    arguments, bench_options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        if arguments.peers_json is not None:
            peers = json.loads(arguments.peers_json.read_text())
        else:
            peers = measure_peers(arguments.peers_script, arguments.model, directory)
        ours = measure_firelane(arguments.model, bench_options, directory)
    limits = ours["limits"]
    print(f"\nfirelane {__version__}, Python {platform.python_version()}, {platform.platform()}")
    print(f"{limits['threads']} threads, {limits['read_gbps']:.1f} GB/s streaming read", end=", ")
    print(f"{limits['dot_gflops'] or limits['fma_gflops']:.0f} GFLOP/s\n")
    print(compare(ours, peers))


if __name__ == "__main__":
    main()
