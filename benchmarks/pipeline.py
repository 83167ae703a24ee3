"""Several ranks of this machine against one process with as many threads.

    pipeline.py tp|pp MODEL [--size 2] [--sequences 1 8] [--prompts 1] [--rounds 5] [--weights auto]
    pipeline.py allreduce [--rounds 50]
    pipeline.py host [--rounds 200]

The first serves MODEL twice, by one process with several threads and by as many ranks with one each, in
turns: rates are medians of the rounds, and so are their ratios. It says, too, which part of the time ranks
wait between steps (the bubble of a pipeline): all that their own clocks have not counted as in one.
`allreduce` times sums of two ranks alone, `host` the steps of a toy model, where next to nothing is computed.
Best at real-time priority.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from pipeline_sums import sum_seconds

from firelane import env
from firelane.backends.ranks.group import RankGroup
from firelane.bench.table import format_table
from firelane.engine.core import EngineCore
from firelane.engine.process.load import load_executor
from firelane.engine_config import EngineConfig
from firelane.wire.frames import Abort, NewRequest, Rejected, Sampling, StepFrame, Submit

LONGEST, PROMPT, SHORT = 2048, 512, 64
"""Tokens of a sequence: at most, of a prompt that is measured, and of one that decodes."""
ROUND_S = 1.5
PAUSE_S = 0.2
"""For steps that are still in flight when the other one's turn comes."""
EMBEDDED = Path(__file__).parents[1] / "firelane" / "models" / "embedded"


class Channel:
    """Requests of an engine, and the count of tokens that it has given."""

    def __init__(self) -> None:
        self.asked: list[Submit | Abort] = []
        self.tokens = self.ended = 0

    def receive(self, wait_s: float | None) -> list[Submit | Abort]:
        del wait_s
        asked, self.asked = self.asked, []
        return asked

    def send(self, frame: StepFrame | Rejected) -> None:
        assert isinstance(frame, StepFrame), f"refused: {frame.message}"
        self.tokens += len(frame.tokens)
        self.ended += len(frame.finished)


class Engine:
    """A model under measurement."""

    def __init__(
        self, model: Path, *, sequences: int, weights: str, threads: int, tp: int = 1, pp: int = 1
    ) -> None:
        """threads: of all ranks together."""
        self.executor = load_executor(
            EngineConfig(
                model_dir=model,
                backend="cpu",
                cache_dir=env.read().cache_dir,
                threads=threads,
                tensor_parallel_size=tp,
                pipeline_parallel_size=pp,
                max_num_seqs=sequences,
                max_model_len=LONGEST,
                kv_cache_bytes=1 << 30,
                weights=weights,
            ),
            lambda *_: None,
        )
        self.channel = Channel()
        self.core = EngineCore(self.executor, self.channel, prefix_cache=False)
        self._next_id = 0

    def submit(self, prompt: int, max_tokens: int) -> None:
        self._next_id += 1
        tokens = np.random.default_rng(self._next_id).integers(4, 200, prompt).astype(np.int32)
        sampling = Sampling(max_tokens=max_tokens, seed=self._next_id)
        request = NewRequest(id=self._next_id, prompt=tokens.tobytes(), sampling=sampling)
        self.channel.asked.append(Submit([request]))

    def decode(self, sequences: int, seconds: float) -> tuple[float, float]:
        """Tokens a second of so many sequences, once all of them decode, and the bubble."""
        for _ in range(sequences):
            self.submit(SHORT, LONGEST - SHORT)
        started = self.channel.tokens + 4 * sequences
        self._run(lambda: self.channel.tokens < started)
        begun, tokens, busy = time.perf_counter(), self.channel.tokens, self.busy_seconds()
        self._run(lambda: time.perf_counter() < begun + seconds)
        wall = time.perf_counter() - begun
        found = (self.channel.tokens - tokens) / wall, self._bubble(busy, wall)
        self.channel.asked.append(Abort(list(range(self._next_id - sequences + 1, self._next_id + 1))))
        self._run(lambda: not self.core.is_idle)
        return found

    def prefill(self, tokens: int, prompts: int) -> tuple[float, float]:
        """Tokens of prompts a second, and the bubble."""
        for _ in range(prompts):
            self.submit(tokens, 1)
        begun, ended, busy = time.perf_counter(), self.channel.ended + prompts, self.busy_seconds()
        self._run(lambda: self.channel.ended < ended)
        wall = time.perf_counter() - begun
        return tokens * prompts / wall, self._bubble(busy, wall)

    def busy_seconds(self) -> list[float]:
        return self.executor.busy_seconds() if isinstance(self.executor, RankGroup) else []

    def _run(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            self.core.step()

    def _bubble(self, before: list[float], wall: float) -> float:
        shares = [(now - then) / wall for now, then in zip(self.busy_seconds(), before, strict=True)]
        return 1 - statistics.fmean(shares) if shares else 0.0


@contextmanager
def both(model: Path, weights: str, sequences: int, **sizes: int) -> Iterator[tuple[Engine, Engine]]:
    """One process, and ranks."""
    threads = math.prod(sizes.values())
    one = Engine(model, sequences=sequences, weights=weights, threads=threads)
    try:
        ranks = Engine(model, sequences=sequences, weights=weights, threads=threads, **sizes)
        try:
            yield one, ranks
        finally:
            ranks.executor.release()
    finally:
        one.executor.release()


def steps(arguments: argparse.Namespace) -> None:
    cases: dict[str, Callable[[Engine], tuple[float, float]]] = {
        f"decode {count}": lambda engine, count=count: engine.decode(count, ROUND_S)
        for count in arguments.sequences
    }
    prompts = arguments.prompts
    if prompts:
        cases[f"prefill {prompts} x {PROMPT}"] = lambda engine: engine.prefill(PROMPT, prompts)
    rows: list[list[str]] = []
    most = max([*arguments.sequences, prompts])
    with both(arguments.model, arguments.weights, most, **{arguments.mode: arguments.size}) as engines:
        for name, case in cases.items():
            pairs = [[_in_turn(case, engine) for engine in engines] for _ in range(arguments.rounds)]
            ratios = sorted(theirs[0] / ours[0] for ours, theirs in pairs)
            found = [statistics.median(side[0] for side in sides) for sides in zip(*pairs, strict=True)]
            bubble = statistics.median(theirs[1] for _, theirs in pairs)
            rows.append(
                [
                    name,
                    *(f"{rate:.1f}" for rate in found),
                    f"{statistics.median(ratios):.2f}",
                    f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
                    f"{bubble:.1%}",
                ]
            )
    header = [
        "step",
        "one process, tokens/s",
        f"{arguments.mode} {arguments.size}",
        "ratio",
        "rounds",
        "waits",
    ]
    print(format_table(header, rows))


def _in_turn(case: Callable[[Engine], tuple[float, float]], engine: Engine) -> tuple[float, float]:
    time.sleep(PAUSE_S)
    return case(engine)


def allreduce(arguments: argparse.Namespace) -> None:
    rows: list[list[str]] = []
    for width in (1024, 2048, 4096, 8192):
        found = [sum_seconds(width, rounds=arguments.rounds, over=over) for over in ("memory", "tcp")]
        medians = (f"{1e6 * statistics.median(seconds):.2f}" for seconds in found)
        rows.append([f"{4 * width // 1024} KiB", *medians])
    print(format_table(["all-reduce of 2 ranks", "memory, µs", "loopback TCP, µs"], rows))


def host(arguments: argparse.Namespace) -> None:
    """The time of a step of a toy model over that of one process with one thread."""
    sizes = {"one process": {}, "tp 2": {"tp": 2}, "pp 2": {"pp": 2}}
    medians: dict[str, float] = {}
    for name, size in sizes.items():
        threads = math.prod(size.values())
        engine = Engine(EMBEDDED, sequences=8, weights="bf16", threads=threads, **size)
        engine.submit(SHORT, LONGEST - SHORT)
        engine._run(lambda engine=engine: engine.channel.tokens < 200)
        times: list[float] = []
        for _ in range(arguments.rounds):
            begun, wanted = time.perf_counter(), engine.channel.tokens + 1
            engine._run(lambda engine=engine, wanted=wanted: engine.channel.tokens < wanted)
            times.append(time.perf_counter() - begun)
        medians[name] = 1e6 * statistics.median(times)
        engine.executor.release()
    first = medians["one process"]
    rows = [[name, f"{value:.0f}", f"{value - first:+.0f}"] for name, value in medians.items()]
    print(format_table(["step of the toy model", "µs", "more"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    for mode in ("tp", "pp"):
        of_model = modes.add_parser(mode)
        of_model.add_argument("model", type=Path)
        of_model.add_argument("--size", type=int, default=2)
        of_model.add_argument("--sequences", type=int, nargs="*", default=[1, 8])
        of_model.add_argument("--prompts", type=int, default=1)
        of_model.add_argument("--rounds", type=int, default=5)
        of_model.add_argument("--weights", default="auto")
        of_model.set_defaults(run=steps)
    for mode, run, rounds in (("allreduce", allreduce, 50), ("host", host, 200)):
        alone = modes.add_parser(mode)
        alone.add_argument("--rounds", type=int, default=rounds)
        alone.set_defaults(run=run)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
