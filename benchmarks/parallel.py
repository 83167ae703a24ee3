"""Steps of several ranks beside those of one process on this machine's CPU, in turns.

    parallel.py tp MODEL [--ranks 2] [--threads 2] [--turns 40]
    parallel.py ep MODEL ...
    parallel.py segments MODEL ...
    parallel.py hosts MODEL ...

"tp" and "ep" load a model twice: by one process with all threads, and by ranks that share these threads, as
--tensor-parallel-size and --expert-parallel-size do. "segments" loads it twice by one process: with products
that add up in eight segments, and in one; "hosts" by ranks that share memory, and by as many on two hosts,
which are two processes here, with TCP over the loopback between them. Steps are run in turns of TURN_S, so
that whatever else the machine does falls on both, and in the order first, second, second, first: each such
four give one ratio, and what is printed is the median of these, with their quartiles. A ratio above one says
that the second is the faster.
Best at real-time priority, on an idle machine.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from plan_vs_measured import PROMPT, SEQUENCES, SHORT, prefill_inputs, run

from firelane import env
from firelane.backends import cpu
from firelane.backends.cpu import loader
from firelane.backends.ranks.member import Member
from firelane.bench.kernels import decode_inputs
from firelane.bench.table import format_table
from firelane.contract import Executor, StepInputs
from firelane.engine_config import EngineConfig, ExecutorConfig, HostsConfig
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.parallel.ranks import RankLayout, rank_program
from firelane.program.ops import ExpertLinear, Linear
from firelane.program.program import Program

TURN_S = 0.25


def decode(sequences: int) -> Callable[[Any], StepInputs]:
    def inputs(executor: Any) -> StepInputs:
        run(executor, prefill_inputs(executor, sequences, SHORT))
        return decode_inputs(executor, sequences, SHORT)

    return inputs


CASES: dict[str, Callable[[Any], StepInputs]] = {
    "decode 1": decode(1),
    f"decode {SEQUENCES}": decode(SEQUENCES),
    f"prefill {PROMPT}": lambda executor: prefill_inputs(executor, 1, PROMPT),
}


class Unsegmented(Member):
    """The only rank, whose products add up in one go."""

    def programs(self, whole: Program) -> dict[int, Program]:
        made = rank_program(whole, RankLayout(), 0)
        ops = tuple(
            replace(op, segments=()) if isinstance(op, Linear | ExpertLinear) else op for op in made.ops
        )
        head = None if made.head is None else replace(made.head, segments=())
        return {self.rank: replace(made, ops=ops, head=head)}


def batched(times: list[float]) -> list[tuple[float, float]]:
    return list(zip(times[::2], times[1::2], strict=True))


@dataclass(frozen=True)
class Compared:
    """Seconds of a step in each turn, an even number of them."""

    case: str
    first: list[float]
    second: list[float]

    def row(self) -> list[str]:
        first, second = ([a + b for a, b in batched(times)] for times in (self.first, self.second))
        ratios = [a / b for a, b in zip(first, second, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        best = min(self.first) / min(self.second)
        times = (f"{statistics.median(times) * 1e3:.2f}" for times in (self.first, self.second))
        return [self.case, *times, f"{middle:.3f}", f"{low:.3f} to {high:.3f}", f"{best:.3f}"]


def config_of(arguments: argparse.Namespace, program: Program, **options: Any) -> ExecutorConfig:
    pages = 2 * SEQUENCES * PROMPT * program.kv_bytes_per_token * len(program.spans)
    return ExecutorConfig(
        cache_dir=env.read().cache_dir,
        threads=arguments.threads,
        max_num_seqs=SEQUENCES,
        max_num_batched_tokens=PROMPT,
        max_model_len=2 * PROMPT,
        kv_cache_bytes=2 * pages + 4 * SEQUENCES * program.state_bytes,
        weights=arguments.weights,
        weights_pages=arguments.weights_pages,
        **options,
    )


def pair(
    arguments: argparse.Namespace, stack: ExitStack
) -> tuple[tuple[str, Executor], tuple[str, Executor]]:
    """The two sides of a comparison, with their names."""
    program = load_program(read_config(arguments.model), max_model_len=2 * PROMPT)
    config = config_of(arguments, program)
    if arguments.what == "hosts":
        return shared_and_tcp(arguments, program, config, stack)
    alone = cpu.load(program, arguments.model, config, lambda *_: None)
    first = f"{arguments.threads} threads", alone
    if arguments.what == "segments":
        one = loader.load_for(
            env.read(), program, arguments.model, config, lambda *_: None, member=Unsegmented()
        )
        return ("eight segments", alone), ("one segment", one)
    field = {"tp": "tensor_parallel_size", "ep": "expert_parallel_size"}[arguments.what]
    own = msgspec.structs.replace(config, **{field: arguments.ranks})
    return first, (
        f"{arguments.what} {arguments.ranks}",
        cpu.load(program, arguments.model, own, lambda *_: None),
    )


@contextmanager
def second_host(config: ExecutorConfig, model: Path) -> Iterator[ExecutorConfig]:
    """The configuration of the first of two hosts, while the other one is there."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    hosts = HostsConfig(count=2, own=0, address="127.0.0.1", port=port)
    fields = {name: getattr(config, name) for name in ExecutorConfig.__struct_fields__}
    first = EngineConfig(**fields | {"hosts": hosts}, model_dir=model)
    other = msgspec.structs.replace(first, hosts=msgspec.structs.replace(hosts, own=1))
    process = subprocess.Popen([sys.executable, "-m", "firelane.engine.process.headless", other.to_json()])
    try:
        yield first
    finally:
        process.kill()
        process.wait()


def shared_and_tcp(
    arguments: argparse.Namespace, program: Program, config: ExecutorConfig, stack: ExitStack
) -> tuple[tuple[str, Executor], tuple[str, Executor]]:
    config = msgspec.structs.replace(config, tensor_parallel_size=arguments.ranks)
    here = cpu.load(program, arguments.model, config, lambda *_: None)
    first = stack.enter_context(second_host(config, arguments.model))
    return ("shared memory", here), ("TCP", cpu.load(program, arguments.model, first, lambda *_: None))


def compare(case: str, executors: list[Any], turns: int) -> Compared:
    inputs = [CASES[case](executor) for executor in executors]
    each = min(run(executor, own) for executor, own in zip(executors, inputs, strict=True))
    steps = max(1, round(TURN_S / each))
    found: list[list[float]] = [[], []]
    for turn in range(turns + turns % 2):
        for which in (0, 1) if turn % 2 else (1, 0):
            if steps > 1:
                run(executors[which], inputs[which])  # the caches, and threads that sleep
            found[which].append(run(executors[which], inputs[which], steps))
    return Compared(case, *found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("tp", "ep", "segments", "hosts"))
    parser.add_argument("model", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2, help="of all ranks together")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--weights-pages", default="auto")
    arguments = parser.parse_args()
    stack = ExitStack()
    pairs = pair(arguments, stack)
    try:
        for _, executor in pairs:
            executor.settle()
        names = [f"{name}, ms" for name, _ in pairs]
        header = ["step", *names, "ratio", "quartiles", "of the best"]
        rows: list[list[str]] = []
        for case in arguments.cases:
            rows.append(compare(case, [e for _, e in pairs], arguments.turns).row())
            print(*rows[-1], flush=True)
        print(f"{arguments.model.name}, medians of {arguments.turns} turns")
        print(format_table(header, rows))
    finally:
        for _, executor in pairs:
            executor.release()
        stack.close()


if __name__ == "__main__":
    main()
