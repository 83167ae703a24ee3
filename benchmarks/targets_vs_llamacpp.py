"""Firelane forced to an instruction-set target and llama.cpp built for the same one, in turns.

    targets_vs_llamacpp.py MODEL --peers-script PATH --llamacpp-python PYTHON [--isa avx2] [--weights auto]

PYTHON is the interpreter of an environment whose llama-cpp-python was compiled for that target alone, such as
CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX512=OFF".
The peers' script is that of turns_vs_peers.py. Ratios are the medians of those of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from turns_vs_peers import WORKLOADS, Engine, Times, load_peers, rates, take_turns

from firelane.bench.table import format_table

NAMES = ["decode-1", "decode-8", "prefill-512"]


def report(times: Times, peer: str = "llamacpp") -> str:
    mine, theirs = rates(times, "firelane"), rates(times, peer)
    rows: list[list[str]] = []
    for name, rounds in times.items():
        pairs = zip(rounds[peer], rounds["firelane"], strict=True)
        ratios = sorted(other / own for other, own in pairs)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        median = f"{statistics.median(ratios):.2f}x"
        rows.append([name, f"{mine[name]:.1f}", f"{theirs[name]:.1f}", median, spread])
    return format_table(["tok/s, best round", "firelane", peer, "median of rounds", "rounds"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--peers-script", type=Path, required=True, metavar="PATH")
    parser.add_argument("--llamacpp-python", required=True, metavar="PYTHON")
    parser.add_argument("--isa", default="avx2")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--workloads", nargs="+", default=NAMES, choices=list(WORKLOADS))
    arguments = parser.parse_args()
    peers, model = load_peers(arguments.peers_script), arguments.model
    with tempfile.TemporaryDirectory() as scratch:
        engines = [
            Engine("firelane", peers, model, Path(scratch), weights=arguments.weights, isa=arguments.isa),
            Engine("llamacpp", peers, model, Path(scratch), python=arguments.llamacpp_python),
        ]
        for engine in engines:
            print(engine.name, "ready in", engine.wait("READY"), "s", file=sys.stderr, flush=True)
        times = take_turns(engines, [name for name in WORKLOADS if name in arguments.workloads])
        for engine in engines:
            engine.stop()
    print(f"{arguments.isa}, --weights {arguments.weights}\n")
    print(report(times))


if __name__ == "__main__":
    main()
