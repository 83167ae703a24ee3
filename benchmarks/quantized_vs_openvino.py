"""Firelane with --weights int8 or int4 and OpenVINO with an export in as many bits, in turns.

    quantized_vs_openvino.py MODEL --exported DIRECTORY --weights int4 --peers-script PATH
        [--activations bf16]

MODEL is a bf16 checkpoint, DIRECTORY its export (optimum-cli export openvino, or nncf.compress_weights of a
plain one) with compressed weights. The peers' script is that of turns_vs_peers.py; it sets OpenVINO up.
Ratios are the medians of those of the rounds. OpenVINO rounds activations to eight bits by default; with
--activations bf16 it multiplies bf16 numbers, as Firelane does in any case.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from targets_vs_llamacpp import NAMES, report
from turns_vs_peers import WORKLOADS, Engine, load_peers, take_turns

HINT = '"INFERENCE_PRECISION_HINT": "bf16"'


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--exported", type=Path, required=True, metavar="DIRECTORY")
    parser.add_argument("--weights", required=True, choices=("int8", "int4"))
    parser.add_argument("--activation-dtype", default="bf16", choices=("bf16", "int8"), help="of Firelane")
    parser.add_argument("--activations", default="int8", choices=("int8", "bf16"), help="of OpenVINO")
    parser.add_argument("--peers-script", type=Path, required=True, metavar="PATH")
    parser.add_argument("--workloads", nargs="+", default=NAMES, choices=list(WORKLOADS))
    arguments = parser.parse_args()
    peers = load_peers(arguments.peers_script)
    if arguments.activations == "bf16":
        in_bf16 = peers.RUNNERS["openvino"].replace(HINT, f'{HINT}, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0')
        assert in_bf16 != peers.RUNNERS["openvino"], "the script passes its settings in another way"
        peers.RUNNERS["openvino"] = in_bf16
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch, "model")
        model.symlink_to(arguments.model.resolve())
        Path(scratch, "model-openvino").symlink_to(arguments.exported.resolve())  # the name that it asks for
        engines = [
            Engine(
                "firelane",
                peers,
                str(arguments.model),
                Path(scratch),
                weights=arguments.weights,
                activations=arguments.activation_dtype,
            ),
            Engine("openvino", peers, str(model), Path(scratch)),
        ]
        for engine in engines:
            print(engine.name, "ready in", engine.wait("READY"), "s", file=sys.stderr, flush=True)
        times = take_turns(engines, [name for name in WORKLOADS if name in arguments.workloads])
        for engine in engines:
            engine.stop()
    print(f"--weights {arguments.weights} --activation-dtype {arguments.activation_dtype}")
    print(f"{arguments.exported.name}, activations {arguments.activations}\n")
    print(report(times, "openvino"))


if __name__ == "__main__":
    main()
