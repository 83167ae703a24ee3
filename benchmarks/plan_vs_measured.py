"""Plans beside measurements on this machine's CPU: memory of an engine, and times of its steps.

    plan_vs_measured.py MODEL --json FILE [--rounds 7] [--weights auto]
    plan_vs_measured.py --table FILE...

The first measures one model (a minute or two, best at real-time priority); the second prints the tables of
all that were measured. Memory is the resident set after every buffer was written to. Steps are timed in
rounds, the bandwidth and the rate of products right before and after each: the plan is made for what they
were, as both drift. Contexts of 8,000 tokens are not computed: the cache is filled with numbers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from firelane import env
from firelane.backends.cpu import loader
from firelane.backends.cpu.executor import CpuExecutor
from firelane.bench.kernels import decode_inputs
from firelane.bench.table import format_table
from firelane.contract import StepInputs
from firelane.doctor.limits import Limits, Probe, build_probe
from firelane.doctor.report import describe_machine
from firelane.engine_config import EngineConfig
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.native.machine import choose_isa, cpu_identity
from firelane.parallel.shares import Shares
from firelane.plan.devices import DeviceSpec
from firelane.plan.estimate import Estimate, PlanSetup, PlanWorkload, estimate
from firelane.plan.forms import choose_form
from firelane.plan.layout import ParallelLayout
from firelane.plan.model import PlannedModel
from firelane.plan.steps import Clock, decode_shape, prefill_shape
from firelane.program.values import StepShape

LONGEST, SEQUENCES, SHORT = 8192, 8, 64
PROMPT, LONG = 512, 8000
ROUND_S = 0.6
"""The seconds that the steps of one workload take in a round."""
SMALL_BF16 = 0x3C3C
"""The bits of about 0.01, in bf16 and in float32."""
MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """A workload: its step, and how it is planned."""

    name: str
    shape: StepShape
    inputs: Callable[[CpuExecutor], StepInputs]

    def planned(self, setup: PlanSetup) -> float:
        """Seconds."""
        if self.name.startswith("prefill"):
            return estimate(setup, ParallelLayout(), PlanWorkload(context=PROMPT)).prefill_s
        workload = PlanWorkload(
            batch=self.shape.sequences, context=self.shape.context // self.shape.sequences
        )
        return estimate(setup, ParallelLayout(), workload).decode_s


def prefill_inputs(executor: CpuExecutor, sequences: int, tokens: int) -> StepInputs:
    """One step that takes the first tokens of each sequence."""
    inputs = decode_inputs(executor, sequences, tokens)
    last = np.arange(1, sequences + 1) * tokens - 1
    inputs.num_chunks, inputs.num_tokens, inputs.num_rows = sequences, sequences * tokens, sequences
    inputs.chunk_start[:sequences], inputs.chunk_len[:sequences] = 0, tokens
    inputs.row_token[:sequences], inputs.row_position[:sequences] = last, tokens - 1
    return inputs


def prompted(executor: CpuExecutor, sequences: int) -> StepInputs:
    """A step that decodes sequences whose prompts were computed: experts are chosen as they would be."""
    run(executor, prefill_inputs(executor, sequences, SHORT))
    return decode_inputs(executor, sequences, SHORT)


CASES = (
    Case("decode 1", decode_shape(1, SHORT), lambda executor: prompted(executor, 1)),
    Case("decode 8", decode_shape(SEQUENCES, SHORT), lambda executor: prompted(executor, SEQUENCES)),
    Case("prefill 512", prefill_shape(0, PROMPT), lambda executor: prefill_inputs(executor, 1, PROMPT)),
    Case("decode 1 at 8,000", decode_shape(1, LONG), lambda executor: decode_inputs(executor, 1, LONG)),
)


def run(executor: CpuExecutor, inputs: StepInputs, steps: int = 1) -> float:
    """Seconds a step."""
    began = time.perf_counter()
    for _ in range(steps):
        executor.submit(inputs)
        executor.wait()
    return (time.perf_counter() - began) / steps


def load(directory: Path, weights: str) -> CpuExecutor:
    program = load_program(read_config(directory), max_model_len=LONGEST)
    pages = 2 * LONGEST * program.kv_bytes_per_token * len(program.spans)
    config = EngineConfig(
        model_dir=directory,
        backend="cpu",
        cache_dir=env.read().cache_dir,
        max_num_seqs=SEQUENCES,
        max_model_len=LONGEST,
        kv_cache_bytes=pages + 4 * SEQUENCES * program.state_bytes,
        state_snapshots=SEQUENCES if program.state_bytes else None,
        weights=weights,
    )
    executor = loader.load(program, directory, config, lambda *_: None)
    executor.settle()
    return executor


def touch(executor: CpuExecutor) -> None:
    """Write to every buffer."""
    for memory in (executor.pages, executor.states, executor.arena, executor._scratch):
        memory.reshape(-1)[: memory.size // 2 * 2].view(np.uint16)[:] = SMALL_BF16
    state = executor.state
    for array in (state.tokens, state.masks, state.bias_ids, state.bias_values, state.stop_ids):
        array[:] = array


def resident_bytes() -> int:
    rows = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(row[1]) << 10 for row in rows if row[0] == "VmRSS:")


def limits_now(probe: Probe, threads: int) -> tuple[float, float]:
    return probe.read_gbps(threads), probe.dot_gflops(threads) or probe.fma_gflops(threads)


def device_for(limits: Sequence[tuple[float, float]], threads: int) -> DeviceSpec:
    """This machine with the mean of these limits: of times, so rates have their harmonic mean."""
    read, peak = (statistics.harmonic_mean(values) for values in zip(*limits, strict=True))
    isa = choose_isa(env.read().isa, cpu_identity())
    measured = Limits(
        threads=threads,
        read_gbps=read,
        read_gbps_1=read,
        dot_gflops=peak,
        dot_gflops_1=peak,
        fma_gflops=peak,
        fma_gflops_1=peak,
    )
    return describe_machine(measured, isa=isa, title="this machine", memory_bytes=1 << 40)


def by_op(executor: CpuExecutor, setup: PlanSetup, shape: StepShape, steps: int) -> dict[str, list[float]]:
    """Milliseconds of each kind of op in a step: planned, measured."""
    model, layout = setup.model, ParallelLayout()
    shares = Shares(program=model.program, tp=1, ep=1, cut=model.cut)
    times = Clock(device=setup.device, model=model, layout=layout, shares=shares).times(shape)
    found: dict[str, list[float]] = {}
    for op, planned, seconds in zip(model.program.ops, times, executor.op_seconds[:-1], strict=True):
        sums = found.setdefault(type(op).__name__, [0.0, 0.0])
        sums[0] += 1e3 * planned.compute
        sums[1] += 1e3 * seconds / steps
    return found


def measure(directory: Path, rounds: int, weights: str) -> dict[str, Any]:
    probe, threads = build_probe(env.read()), cpu_identity().usable_cores
    executor = load(directory, weights)
    program = executor.layout.program
    form = choose_form(program, "lossless12" if weights == "auto" else weights, directory, {})
    setup = PlanSetup(
        model=PlannedModel(program=program, form=form),
        device=device_for([limits_now(probe, threads)], threads),
        max_num_seqs=SEQUENCES,
        max_model_len=LONGEST,
        kv_bytes=executor.kv_bytes + executor.states.nbytes,
    )
    touch(executor)
    found: dict[str, Any] = {"model": directory.name, "weights": form.name, "cases": {}}
    for case in CASES:
        inputs = case.inputs(executor)
        steps = max(1, round(ROUND_S / run(executor, inputs, 2)))
        for number in range(rounds):
            before = limits_now(probe, threads)
            executor.op_seconds[:] = 0
            seconds = run(executor, inputs, steps)
            setup = replace(setup, device=device_for([before, limits_now(probe, threads)], threads))
            row = [case.planned(setup), seconds, setup.device.read_gbps, setup.device.tflops]
            found["cases"].setdefault(case.name, []).append(row)
            if number == rounds // 2:
                found.setdefault("ops", {})[case.name] = by_op(executor, setup, case.shape, steps)
    found["memory"] = memory_rows(
        estimate(setup, ParallelLayout(), PlanWorkload(context=LONG)), executor, setup
    )
    executor.release()
    return found


def memory_rows(planned: Estimate, executor: CpuExecutor, setup: PlanSetup) -> dict[str, list[int]]:
    """Bytes planned and measured, of parts and of all."""
    rank = planned.ranks[0]
    kept = executor.kv_bytes + executor.states.nbytes
    tables = sum(table.nbytes for table in executor._positions.arrays)
    assert setup.kv_bytes == kept
    return {
        "weights": [rank.weights, executor.weights_bytes],
        "activations": [rank.activations, executor.arena.nbytes],
        "workspace": [rank.workspace, tables + executor._scratch.nbytes],
        "all": [rank.taken + kept, resident_bytes()],
    }


def tables(files: Sequence[Path]) -> str:
    found = [json.loads(path.read_text()) for path in files]
    times, memory = [], []
    for model in found:
        for name, rows in model["cases"].items():
            ratios = [planned / seconds for planned, seconds, *_ in rows]
            planned, seconds, gbps, _ = (statistics.median(column) for column in zip(*rows, strict=True))
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            cells = [
                f"{1e3 * planned:.1f}",
                f"{1e3 * seconds:.1f}",
                f"{statistics.median(ratios):.2f}",
                spread,
            ]
            times.append([model["model"], name, *cells, f"{gbps:.0f}"])
        rows = model["memory"]
        cells = [f"{planned / MIB:.0f} / {measured / MIB:.0f}" for planned, measured in rows.values()]
        memory.append([model["model"], *cells, f"{rows['all'][0] / rows['all'][1]:.3f}"])
    header = ["model", "step", "planned ms", "measured ms", "ratio", "rounds", "GB/s"]
    parts = [f"{name}, MiB" for name in found[0]["memory"]]
    return f"{format_table(header, times)}\n\n{format_table(['model', *parts, 'ratio'], memory)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--weights", choices=("auto", "bf16"), default="auto")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE")
    options = parser.parse_args()
    if options.table:
        print(tables(options.table))
        return
    if options.model is None or options.json is None:
        parser.error("give a model directory and --json FILE, or --table FILE...")
    found = measure(options.model, options.rounds, options.weights)
    options.json.write_text(json.dumps(found, indent=1))
    print(tables([options.json]))


if __name__ == "__main__":
    main()
