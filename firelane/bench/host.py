"""The host's own cost: CPU time of gateway and engine for each output token, on the null backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from firelane.bench.client import LoadClient, first_model
from firelane.bench.serve import ServeLoad, run_load
from firelane.bench.server import ServerProcess, cpu_seconds
from firelane.bench.table import format_table, write_json
from firelane.bench.workload import BenchRequest, exponential, text_requests
from firelane.errors import MachineError
from firelane.sources.resolve import resolve

PROMPT_MEAN, OUTPUT_MEAN = 220, 200
LONGEST_TOKENS = 1000
WARM_UP_REQUESTS = 100


@dataclass(frozen=True, kw_only=True)
class HostCost:
    """CPU microseconds for each output token (prompts, HTTP, tokenising and all), and what was served."""

    gateway_us: float
    engine_us: float
    output_tokens: int
    prompt_tokens: int
    output_tokens_per_s: float

    @property
    def total_us(self) -> float:
        return self.gateway_us + self.engine_us


@dataclass(frozen=True, kw_only=True)
class HostLoad:
    streams: int
    num_requests: int
    seed: int


def run_host(model: str | None, load: HostLoad, *, json_file: Path | None) -> int:
    """Start a server on the null backend, load it, print the cost. Raises MachineError when requests fail."""
    directory = resolve(model)
    arguments = [str(directory), "--backend", "null", "--max-num-seqs", str(load.streams)]
    with ServerProcess(arguments) as server:
        cost = measure_host(server, load, read_vocabulary(directory))
    if json_file is not None:
        write_json(json_file, cost)
    rows = [["gateway", f"{cost.gateway_us:.1f}"], ["engine", f"{cost.engine_us:.1f}"]]
    print(f"{load.streams} streams, {load.num_requests} requests: {cost.prompt_tokens} tokens in, ", end="")
    print(f"{cost.output_tokens} out, {cost.output_tokens_per_s:.0f} output tok/s")
    print(format_table(["process", "CPU us per output token"], [*rows, ["sum", f"{cost.total_us:.1f}"]]))
    return 0


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A vocabulary that makes text of random ids."""

    size: int
    decode: Callable[[list[int]], str]


def read_vocabulary(directory: Path) -> Vocabulary:
    """The vocabulary of the model in `directory`."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return Vocabulary(size=tokenizer.get_vocab_size(), decode=tokenizer.decode)


def _requests(count: int, seed: int, vocabulary: Vocabulary) -> list[BenchRequest]:
    """Prompts as text: tokenising them is a part of the cost."""
    lengths = exponential(
        count, seed=seed, prompt_mean=PROMPT_MEAN, output_mean=OUTPUT_MEAN, longest=LONGEST_TOKENS
    )
    return text_requests(lengths, seed=seed, vocab_size=vocabulary.size, decode=vocabulary.decode)


def measure_host(server: ServerProcess, load: HostLoad, vocabulary: Vocabulary) -> HostCost:
    """CPU time of the server's processes over the load, after a warm-up."""
    client = LoadClient(server.url, first_model(server.url), extra={"ignore_eos": True})
    together = ServeLoad(concurrency=load.streams)
    run_load(client, _requests(WARM_UP_REQUESTS, load.seed + 1, vocabulary), together)
    measured = _requests(load.num_requests, load.seed, vocabulary)
    engine_pids = server.engine_pids
    before = cpu_seconds(server.gateway_pid), sum(map(cpu_seconds, engine_pids))
    outcomes, seconds = run_load(client, measured, together)
    after = cpu_seconds(server.gateway_pid), sum(map(cpu_seconds, engine_pids))
    errors = [o.error for o in outcomes if o.error]
    if errors:
        raise MachineError(f"{len(errors)} of {len(outcomes)} requests failed, the first with: {errors[0]}")
    tokens = sum(o.output_tokens for o in outcomes)
    return HostCost(
        gateway_us=(after[0] - before[0]) * 1e6 / tokens,
        engine_us=(after[1] - before[1]) * 1e6 / tokens,
        output_tokens=tokens,
        prompt_tokens=sum(o.prompt_tokens for o in outcomes),
        output_tokens_per_s=tokens / seconds,
    )
