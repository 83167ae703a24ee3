"""The time to load an adapter while a server runs: from the request that loads it to the first token that is
drawn with it, beyond the base's.

    python benchmarks/lora_load.py MODEL [--rank 16] [--rounds 15]

MODEL: a directory; a server of it is started, with two places for adapters. An adapter with random factors
for every module that can be adapted is written in bf16, and read once, so that it lies in the page cache.
Each round asks for one token of a prompt of 16 with the base, loads the adapter, asks for one token with it,
and unloads it; the prompts are all new. The table has medians, the least and the most, and the processor time
of all processes of the server for a load, on average, which a busy machine changes least.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import mean, median

import httpx
import numpy as np

from firelane.bench.server import ServerProcess, descendants
from firelane.bench.table import format_table
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.native.machine import cpu_identity
from firelane.program.adapters import adaptable_modules

PROMPT_TOKENS = 16
LOAD, CPU = "load", "processors, of the load"


def write_adapter(directory: Path, model: Path, rank: int) -> int:
    """Random factors in bf16; returns the bytes of the file."""
    rng, shapes, data = np.random.default_rng(1), dict[str, object](), bytearray()
    for module, (n, k) in adaptable_modules(load_program(read_config(model))).items():
        for factor, shape in (("A", (rank, k)), ("B", (n, rank))):
            values = 0.01 * rng.standard_normal(shape, np.float32)
            begin = len(data)
            data += (values.view(np.uint32) >> 16).astype("<u2").tobytes()
            entry = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, len(data)]}
            shapes[f"base_model.model.{module}.lora_{factor}.weight"] = entry
    head = json.dumps(shapes).encode()
    (directory / "adapter_model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return len((directory / "adapter_model.safetensors").read_bytes())


def round_of(server: ServerProcess, base: str, directory: Path, first: int) -> dict[str, float]:
    """Seconds of each part, and what the load took of processors. first: token of both prompts."""
    took: dict[str, float] = {}
    load = {"lora_name": "x", "lora_path": str(directory)}
    for what, path, body in (
        ("base's token", "/v1/completions", _ask(base, first)),
        (LOAD, "/v1/load_lora_adapter", load),
        ("adapter's token", "/v1/completions", _ask("x", first)),
    ):
        busy_s, began_s = cpu_s(server), time.perf_counter()
        httpx.post(server.url + path, json=body, timeout=120).raise_for_status()
        took[what] = time.perf_counter() - began_s
        if what == LOAD:
            took[CPU] = cpu_s(server) - busy_s
    httpx.post(f"{server.url}/v1/unload_lora_adapter", json={"lora_name": "x"}).raise_for_status()
    took["beyond the base"] = took[LOAD] + took["adapter's token"] - took["base's token"]
    return took


def cpu_s(server: ServerProcess) -> float:
    """Processor time of all processes of the server, in ticks of the system."""
    pids = (server.process.pid, *descendants(server.process.pid))
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


def _ask(name: str, first: int) -> dict[str, object]:
    prompt = [first, *range(100, 100 + PROMPT_TOKENS - 1)]
    return {"model": name, "prompt": prompt, "max_tokens": 1, "temperature": 0}


def measure(server: ServerProcess, directory: Path, rounds: int) -> list[list[str]]:
    base = httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"]
    found = [round_of(server, base, directory, 1000 + number) for number in range(rounds + 1)][1:]
    columns = {what: [one[what] for one in found] for what in found[0]}
    return [
        [what, *(f"{1e3 * of(values):.1f}" for of in (mean if what == CPU else median, min, max))]
        for what, values in columns.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        nbytes = write_adapter(Path(made), arguments.model, arguments.rank)
        print(f"{cpu_identity().model}; an adapter of rank {arguments.rank}, {nbytes / 1e6:.1f} MB")
        words = [str(arguments.model), "--max-loras", "2", "--max-lora-rank", str(arguments.rank)]
        words += ["--max-model-len", "512", "--kv-cache-gib", "0.25", "--max-num-seqs", "4"]
        with ServerProcess(words) as server:
            rows = measure(server, Path(made), arguments.rounds)
    print(format_table(["what", "ms", "least", "most"], rows))


if __name__ == "__main__":
    main()
