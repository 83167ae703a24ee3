"""Firelane with --weights int8 or int4 and OpenVINO with an export in as many bits, in turns.

    quantized_vs_openvino.py MODEL --exported DIRECTORY --weights int4 --peers-script PATH

MODEL is a bf16 checkpoint, DIRECTORY its export (optimum-cli export openvino, or nncf.compress_weights of a
plain one) with compressed weights. The peers' script is that of turns_vs_peers.py; it sets OpenVINO up.
Ratios are the medians of those of the rounds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from targets_vs_llamacpp import NAMES, report
from turns_vs_peers import WORKLOADS, Engine, load_peers, take_turns


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--exported", type=Path, required=True, metavar="DIRECTORY")
    parser.add_argument("--weights", required=True, choices=("int8", "int4"))
    parser.add_argument("--peers-script", type=Path, required=True, metavar="PATH")
    parser.add_argument("--workloads", nargs="+", default=NAMES, choices=list(WORKLOADS))
    arguments = parser.parse_args()
    peers = load_peers(arguments.peers_script)
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch, "model")
        model.symlink_to(arguments.model.resolve())
        Path(scratch, "model-openvino").symlink_to(arguments.exported.resolve())  # the name that it asks for
        engines = [
            Engine("firelane", peers, str(arguments.model), Path(scratch), weights=arguments.weights),
            Engine("openvino", peers, str(model), Path(scratch)),
        ]
        for engine in engines:
            print(engine.name, "ready in", engine.wait("READY"), "s", file=sys.stderr, flush=True)
        times = take_turns(engines, [name for name in WORKLOADS if name in arguments.workloads])
        for engine in engines:
            engine.stop()
    print(f"--weights {arguments.weights}, {arguments.exported.name}\n\n{report(times, 'openvino')}")


if __name__ == "__main__":
    main()
