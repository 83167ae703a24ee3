"""Routing policies over two real engines of a small model on a CPU: `python benchmarks/routing_policies.py`.

One server for each policy, all idle but the one whose turn it is. A round asks each server the same requests,
three mixes of them, in turns; the next round begins with another policy, and has other prompts. Ratios are of
a round's two turns, so that what else the machine does meets both. Turns are kept in --figures, from which a
further start goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from random_model import COMMON, write_checkpoint, write_tokenizer

from firelane import __version__
from firelane.bench.client import DEFAULT_EXTRA, LoadClient, Outcome, first_model, read_outcome
from firelane.bench.server import ServerProcess
from firelane.bench.table import format_table, percentile
from firelane.bench.workload import BenchRequest
from firelane.gateway.config.model import LEAST_TOKENS, ROUTING

CONFIG = COMMON | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 2048,
    "max_position_embeddings": 8192,
}
KV_GIB = 0.05
"""The cache of both engines together: some 13,000 tokens each."""
SECONDS, ROUNDS = 840.0, 7


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Clients that ask one after the other: `turns` prompts each, of which the next one begins with the last
    one. shared: tokens that all those of one kind begin with; more: of each turn, (least, most), log-uniform.
    Without kinds prompts have nothing in common."""

    clients: int
    turns: int
    kinds: int
    shared: int
    more: tuple[int, int]
    output: int


MIXES = {
    "agents": Mix(clients=6, turns=5, kinds=2, shared=768, more=(300, 500), output=16),
    "chat": Mix(clients=8, turns=3, kinds=1, shared=1024, more=(50, 300), output=24),
    "unique": Mix(clients=6, turns=4, kinds=0, shared=0, more=(100, 2000), output=16),
}


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Figures of one policy in one round of a mix."""

    mix: str
    policy: str
    number: int
    hit_ratio: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    requests_per_s: float


METRICS = ("hit_ratio", "ttft_p50_ms", "ttft_p99_ms", "requests_per_s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--figures", type=Path, default=Path("routing_policies.jsonl"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="after which no round begins")
    parser.add_argument("--policy", action="append", choices=ROUTING, help="only these (default: all)")
    options = parser.parse_args()
    known = [Turn(**json.loads(line)) for line in _lines(options.figures)]
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        _measure(Path(directory), stack, options, known)
    print(
        f"Firelane {__version__}, Python {platform.python_version()}, {_processor()}, {os.cpu_count()} cores"
    )
    print(f"load at the end {os.getloadavg()[1]:.1f}")
    print(report([Turn(**json.loads(line)) for line in _lines(options.figures)]))


def _measure(directory: Path, stack: ExitStack, options: argparse.Namespace, known: Sequence[Turn]) -> None:
    began_s, done = time.monotonic(), {(turn.mix, turn.policy, turn.number) for turn in known}
    write_checkpoint(directory, CONFIG)
    write_tokenizer(directory, CONFIG["vocab_size"])
    arguments = [str(directory), "--replicas", "2", "--kv-cache-gib", str(KV_GIB), "--max-num-seqs", "16"]
    policies: Sequence[str] = options.policy or ROUTING
    servers = {
        name: stack.enter_context(ServerProcess([*arguments, "--routing", name])).url for name in policies
    }
    for number in range(options.rounds):
        for mix in MIXES:
            for policy in _rotated(policies, number):
                if (mix, policy, number) not in done and time.monotonic() - began_s < options.seconds:
                    turn = asyncio.run(_turn(servers[policy], mix, policy, number))
                    with options.figures.open("a") as file:
                        file.write(json.dumps(asdict(turn)) + "\n")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _rotated(names: Sequence[str], number: int) -> list[str]:
    at = number % len(names)
    return [*names[at:], *names[:at]]


async def _turn(url: str, mix: str, policy: str, number: int) -> Turn:
    """All clients of a mix at one server."""
    model, shape = first_model(url), MIXES[mix]
    began_s = time.perf_counter()
    asked = await asyncio.gather(
        *(_client(url, model, prompts, shape.output, i) for i, prompts in enumerate(prompts_of(mix, number)))
    )
    lasted_s = time.perf_counter() - began_s
    outcomes = [outcome for one in asked for outcome in one]
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if errors:
        raise SystemExit(f"{policy}, {mix}: {errors[0]}")
    ttfts_ms = [1000 * outcome.ttft_s for outcome in outcomes]
    prompts = sum(outcome.prompt_tokens for outcome in outcomes)
    return Turn(
        mix=mix,
        policy=policy,
        number=number,
        hit_ratio=sum(outcome.cached_tokens for outcome in outcomes) / prompts,
        ttft_p50_ms=percentile(ttfts_ms, 50),
        ttft_p99_ms=percentile(ttfts_ms, 99),
        requests_per_s=len(outcomes) / lasted_s,
    )


async def _client(
    url: str, model: str, prompts: Sequence[list[int]], output: int, number: int
) -> list[Outcome]:
    """One session: the next prompt follows the answer to the last one."""
    client = LoadClient(url, model, extra=DEFAULT_EXTRA | {"prompt_cache_key": f"client {number}"})
    return [
        read_outcome(await client.complete(BenchRequest(prompt=prompt, output_tokens=output)))
        for prompt in prompts
    ]


def prompts_of(mix: str, number: int) -> list[list[list[int]]]:
    """Token ids, by client and turn; other ones for each number."""
    shape, rng = MIXES[mix], random.Random(f"{mix} {number}")
    beginnings = [_tokens(rng, shape.shared) for _ in range(shape.kinds)]
    clients: list[list[list[int]]] = []
    for i in range(shape.clients):
        history = beginnings[i % shape.kinds] if shape.kinds else []
        prompts: list[list[int]] = []
        for _ in range(shape.turns):
            least, most = shape.more
            more = _tokens(rng, round(least * (most / least) ** rng.random()))
            history = history + more if shape.kinds else more
            prompts.append(history)
        clients.append(prompts)
    return clients


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(100, CONFIG["vocab_size"]) for _ in range(count)]


def report(turns: Sequence[Turn]) -> str:
    """A row for each policy under each mix: medians, and medians of ratios to least-tokens in its round."""
    header = ("mix", "policy", "rounds", "hit ratio", "TTFT p50 ms", "TTFT p99 ms", "requests/s")
    rows: list[tuple[str, ...]] = []
    for mix in MIXES:
        plain = {one.number: one for one in turns if (one.mix, one.policy) == (mix, LEAST_TOKENS)}
        for policy in ROUTING:
            own = [one for one in turns if (one.mix, one.policy) == (mix, policy) and one.number in plain]
            if own:
                rows.append((mix, policy, str(len(own)), *(_text(own, plain, name) for name in METRICS)))
    return format_table(header, rows)


def _text(own: Sequence[Turn], plain: dict[int, Turn], name: str) -> str:
    """The median, and of a metric that is no ratio itself its ratio to the plain policy's."""
    middle = median(getattr(one, name) for one in own)
    if name == "hit_ratio":
        return f"{middle:.3f}"
    ratios = sorted(getattr(one, name) / getattr(plain[one.number], name) for one in own)
    return f"{middle:.4g} ({median(ratios):.2f}; {ratios[0]:.2f}-{ratios[-1]:.2f})"


def _processor() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in _lines(Path("/proc/cpuinfo"))
        if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
