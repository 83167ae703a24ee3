"""Firelane and its peers in turns: all loaded at once, each workload on one after the other, several rounds.

    turns_vs_peers.py MODEL --peers-script PATH [--engines NAME ...] [--workloads NAME ...] [--json FILE]

A shared machine's memory bandwidth drifts within minutes, so only runs that lie seconds apart can be
compared. The peers' script is a Python file with COMMON, RUNNERS (one program text a peer, which defines
go(n, inp, out) -> seconds and ends with report(ready, go)) and python(peer) -> the peer's interpreter.
Rates: prompt tokens/s for prefill, output tokens/s for decode, all tokens/s for the mix; the long decode's is
that of the 128 tokens after the first.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from firelane import __version__
from firelane.bench.table import format_table

# name: (requests, tokens in, tokens out, rounds)
WORKLOADS = {
    "decode-1": (1, 16, 64, 7),
    "decode-8": (8, 16, 64, 7),
    "prefill-512": (1, 512, 1, 7),
    "mix-32": (32, 128, 128, 7),
    "long-prefill-6000": (1, 6000, 1, 1),
    "long-6000-and-129": (1, 6000, 129, 1),
}
SERVE = """
def report(ready, go):
    go(1, 8, 4)
    print("READY", ready, flush=True)
    for line in sys.stdin:
        print("TIME", go(*map(int, line.split())), flush=True)
"""
OURS = """
import numpy as np
from pathlib import Path
from firelane import env
from firelane.engine.core import EngineCore
from firelane.engine.process.load import load_executor
from firelane.engine_config import EngineConfig
from firelane.wire.frames import NewRequest, Sampling
class Channel:
    def receive(self, wait_s): return ()
    def send(self, frame): pass
t = time.perf_counter()
sizes = dict(max_num_seqs=64, kv_cache_bytes=2 << 30)
settings = json.loads(sys.argv[2])
config = EngineConfig(model_dir=Path(model), cache_dir=env.read().cache_dir, **sizes, **settings)
executor = load_executor(config, lambda *_: None)
core, ids = EngineCore(executor, Channel(), prefix_cache=False), iter(range(10**9))
def go(n, inp, out):
    ps = [np.array(p, np.int32).tobytes() for p in prompts(n, inp)]; t = time.perf_counter()
    greedy = Sampling(temperature=0.0, max_tokens=out)
    for p in ps: core.submit(NewRequest(id=next(ids), prompt=p, sampling=greedy))
    while not core.is_idle: core.step()
    return time.perf_counter() - t
ready = time.perf_counter() - t
executor.settle()  # the check of cached weights, which reads all of them beside the first steps
report(ready, go)
"""
Times = dict[str, dict[str, list[float]]]


class Engine:
    """A process that runs one workload whenever it is told to."""

    def __init__(
        self,
        name: str,
        peers: ModuleType,
        model: str,
        directory: Path,
        *,
        weights: str = "auto",
        activations: str = "bf16",
        isa: str = "",
        python: str = "",
    ) -> None:
        """`weights`, `activations`, `isa`: as Firelane has them; a peer takes its own. `python`: a peer's
        interpreter that is not where the script sets it up."""
        self.name = name
        program = peers.COMMON + SERVE + OURS
        if name != "firelane":
            longer = peers.RUNNERS[name].replace("max_model_len=4096", "max_model_len=8192")
            program = longer.replace(peers.COMMON, peers.COMMON + SERVE)
        script = directory / f"run_{name}.py"  # "firelane.py" would hide the package
        script.write_text(program)
        interpreter = sys.executable if name == "firelane" else python or peers.python(name)
        command = [interpreter, str(script), model]
        own = {"weights": weights, "activation_dtype": activations}
        settings = json.dumps(own if name == "firelane" else {})
        self._process = subprocess.Popen(
            [*command, settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | ({"FIRELANE_ISA": isa} if isa else {}),
            start_new_session=True,  # vLLM's workers outlive their parent
        )

    def wait(self, word: str) -> float:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return float(line.split()[1])
        raise SystemExit(f"{self.name} ended with {self._process.wait()}")

    def run(self, workload: tuple[int, int, int, int]) -> float:
        """Seconds."""
        assert self._process.stdin is not None
        print(*workload[:3], file=self._process.stdin, flush=True)
        return self.wait("TIME")

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def load_peers(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("peers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def take_turns(engines: list[Engine], names: list[str]) -> Times:
    times: Times = {}
    for name in names:
        workload = WORKLOADS[name]
        times[name] = {engine.name: [] for engine in engines}
        for _ in range(workload[3]):
            for engine in engines:
                times[name][engine.name].append(engine.run(workload))
        print(name, times[name], file=sys.stderr, flush=True)
    return times


def rates(times: Times, engine: str) -> dict[str, float]:
    """Tokens a second by workload, best of the rounds."""
    best = {name: min(by_engine[engine]) for name, by_engine in times.items()}
    found: dict[str, float] = {}
    for name in times:
        n, inp, out, _ = WORKLOADS[name]
        if name == "long-6000-and-129" and "long-prefill-6000" in best:
            found["long-decode-6000"] = (out - 1) / (best[name] - best["long-prefill-6000"])
        else:
            tokens = inp if "prefill" in name else n * out if name.startswith("decode") else n * (inp + out)
            found[name] = tokens / best[name]
    return found


def to_the_best_of_each_round(rounds: dict[str, list[float]], peers: list[str]) -> list[float]:
    fastest = [min(seconds) for seconds in zip(*(rounds[name] for name in peers), strict=True)]
    return [other / mine for other, mine in zip(fastest, rounds["firelane"], strict=True)]


def report(times: Times, names: list[str]) -> str:
    by_engine = {name: rates(times, name) for name in names}
    rows: list[list[str]] = []
    for workload, ours in by_engine["firelane"].items():
        theirs = {name: by_engine[name][workload] for name in names if name != "firelane"}
        best = max(theirs, key=lambda name: theirs[name])
        rounds = times.get(workload)
        ratios = to_the_best_of_each_round(rounds, list(theirs)) if rounds else [ours / theirs[best]]
        speeds = [f"{by_engine[name][workload]:.1f}" for name in names]
        rows.append(
            [workload, *speeds, best, f"{ours / theirs[best]:.2f}x", f"{statistics.median(ratios):.2f}x"]
        )
    return format_table(["tok/s, best round", *names, "best peer", "ratio", "median of rounds"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--peers-script", type=Path, required=True, metavar="PATH")
    parser.add_argument("--engines", nargs="+", default=["firelane", "llamacpp", "openvino", "vllm"])
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="the times of all rounds, in seconds")
    arguments = parser.parse_args()
    peers = load_peers(arguments.peers_script)
    with tempfile.TemporaryDirectory() as scratch:
        engines = [Engine(name, peers, arguments.model, Path(scratch)) for name in arguments.engines]
        for engine in engines:
            print(engine.name, "ready in", engine.wait("READY"), "s", file=sys.stderr, flush=True)
        times = take_turns(engines, [name for name in WORKLOADS if name in arguments.workloads])
        for engine in engines:
            engine.stop()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(times, indent=1))
    print(f"firelane {__version__}, Python {platform.python_version()}, {platform.platform()}\n")
    print(report(times, arguments.engines))


if __name__ == "__main__":
    main()
