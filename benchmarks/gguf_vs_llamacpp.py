"""Firelane and llama.cpp on the same GGUF file, in turns.

    gguf_vs_llamacpp.py FILE [FILE ...] --peers-script PATH [--workloads decode-1 decode-8 prefill-512 mix-32]
        [--activation-dtype int8] [--isa avx2 --llamacpp-python PYTHON]

The peers' script is that of turns_vs_peers.py; it sets llama.cpp up. --isa forces Firelane to an
instruction-set target; PYTHON has a llama.cpp that was built for it (see targets_vs_llamacpp.py). Ratios are
the medians of those of the rounds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from targets_vs_llamacpp import NAMES, report
from turns_vs_peers import WORKLOADS, Engine, load_peers, take_turns

from firelane.sources.resolve import resolve


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--peers-script", type=Path, required=True, metavar="PATH")
    parser.add_argument("--weights", default="auto", help="as of firelane serve (default: auto)")
    parser.add_argument("--activation-dtype", default="bf16", choices=("bf16", "int8"), help="of Firelane")
    parser.add_argument("--isa", default="", help="the target of Firelane (default: the best of this CPU)")
    parser.add_argument("--llamacpp-python", default="", metavar="PYTHON")
    parser.add_argument("--workloads", nargs="+", default=NAMES, choices=list(WORKLOADS))
    arguments = parser.parse_args()
    peers = load_peers(arguments.peers_script)
    for file in arguments.files:
        with tempfile.TemporaryDirectory() as scratch:
            model = Path(scratch, "model")
            model.with_suffix(".bf16.gguf").symlink_to(file.resolve())  # the name that the script asks for
            engines = [
                Engine(
                    "firelane",
                    peers,
                    str(resolve(str(file))),
                    Path(scratch),
                    weights=arguments.weights,
                    activations=arguments.activation_dtype,
                    isa=arguments.isa,
                ),
                Engine("llamacpp", peers, str(model), Path(scratch), python=arguments.llamacpp_python),
            ]
            for engine in engines:
                print(engine.name, "ready in", engine.wait("READY"), "s", file=sys.stderr, flush=True)
            times = take_turns(engines, [name for name in WORKLOADS if name in arguments.workloads])
            for engine in engines:
                engine.stop()
        options = f"{arguments.isa} --activation-dtype {arguments.activation_dtype}"
        print(f"{file.name}, {options}\n\n{report(times)}\n", flush=True)


if __name__ == "__main__":
    main()
