"""Traffic over twelve models of 0.1 to 1 B parameters on a node with memory for three, by Zipf's law, with
engines that are killed; in turns with as many clients of one model that has a server of its own.

    python benchmarks/node_traffic.py write DIR      the models, random weights: 11 GB
    python benchmarks/node_traffic.py run DIR        packs and compiles them at first

Each turn: what each model takes to come while nothing else runs, traffic, and the lone model. Answers have to
be those that each model gave at first, byte for byte.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import httpx
import msgspec
from random_model import write_checkpoint, write_tokenizer

from firelane.bench.server import ServerProcess, starved_s

VOCAB = 32768
EACH, FIT = 2, 3
ORDER = (2, 6, 3, 1, 5, 8, 0, 4, 9, 7, 11, 10)
"""Models by popularity."""
TOKENS = 8
PROMPT = "The quick brown fox jumps over the lazy dog and"
ENGINE = {"kv_cache_gib": "0.0625", "max_num_seqs": "4", "max_model_len": "1024"}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A Llama's; heads of 64 dimensions, four KV heads, tied embeddings."""

    width: int
    mlp: int
    layers: int

    @property
    def config(self) -> dict[str, Any]:
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": self.width,
            "intermediate_size": self.mlp,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.width // 64,
            "num_key_value_heads": 4,
            "head_dim": 64,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "vocab_size": VOCAB,
            "torch_dtype": "bfloat16",
            "tie_word_embeddings": True,
        }

    @property
    def parameters(self) -> int:
        layer = self.width * (2 * self.width + 2 * 256 + 3 * self.mlp)
        return layer * self.layers + VOCAB * self.width


SHAPES = (
    Shape(width=768, mlp=2048, layers=12),
    Shape(width=1024, mlp=2816, layers=14),
    Shape(width=1024, mlp=2816, layers=24),
    Shape(width=1280, mlp=3584, layers=24),
    Shape(width=1536, mlp=4096, layers=26),
    Shape(width=2048, mlp=5632, layers=21),
)


def write(directory: Path) -> None:
    for index in range(EACH * len(SHAPES)):
        path = directory / f"m{index}"
        write_checkpoint(path, SHAPES[index % len(SHAPES)].config, seed=index)
        write_tokenizer(path, VOCAB)
        print(f"{path}: {SHAPES[index % len(SHAPES)].parameters / 1e9:.2f} B parameters", flush=True)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """asked_s: on the run's clock. state: of the model when it was asked."""

    model: str
    state: str
    asked_s: float
    first_s: float
    text: str


@dataclass
class Clients:
    """Requests to one server, each to be answered as that model always does."""

    http: httpx.AsyncClient
    texts: dict[str, str]
    answers: list[Answer] = field(default_factory=list[Answer], init=False)
    failed: list[str] = field(default_factory=list[str], init=False)

    async def ask(self, model: str, state: str = "") -> Answer:
        """Raises RuntimeError, httpx.HTTPError."""
        asked_s = time.perf_counter()
        first_s, text = await stream(self.http, model)
        if self.texts.setdefault(model, text) != text:
            raise RuntimeError(f"another answer than at first: {text!r} for {self.texts[model]!r}")
        return Answer(model=model, state=state, asked_s=asked_s, first_s=first_s, text=text)

    async def ask_on(self, names: Iterable[str], draw: random.Random, think_s: float, ends_s: float) -> None:
        """One client: a request, a pause, until then."""
        for name in names:
            await asyncio.sleep(draw.expovariate(1 / think_s))
            if time.perf_counter() >= ends_s:
                return
            state = (await states(self.http)).get(name, "ready")
            try:
                self.answers.append(await self.ask(name, state))
            except (RuntimeError, httpx.HTTPError) as error:
                self.failed.append(f"{name} ({state}): {type(error).__name__}: {error}")


async def stream(http: httpx.AsyncClient, model: str) -> tuple[float, str]:
    """Seconds to the first token, and the text. Raises RuntimeError, httpx.HTTPError."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    began_s, first_s, text, last = time.perf_counter(), 0.0, "", ""
    async with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
        if answer.status_code != 200:
            raise RuntimeError((await answer.aread()).decode())
        async for line in answer.aiter_lines():
            last = line or last
            if line.startswith("data: {"):
                first_s = first_s or time.perf_counter() - began_s
                event = msgspec.json.decode(line[6:])
                if "choices" not in event:
                    raise RuntimeError(line)
                text += "".join(choice["text"] for choice in event["choices"])
    if last != "data: [DONE]":
        raise RuntimeError(f"ended early, with {last!r}")
    return first_s, text


async def report(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    return (await http.get("/admin/models")).raise_for_status().json()["models"]


async def states(http: httpx.AsyncClient) -> dict[str, str]:
    answer = await http.get("/admin/models")
    if answer.status_code != 200:
        return {}
    return {one["name"]: one["state"] for one in answer.json()["models"]}


async def act(http: httpx.AsyncClient, what: str, model: str) -> None:
    (await http.post(f"/admin/models/{what}", json={"model": model})).raise_for_status()


@asynccontextmanager
async def served(command: str, *arguments: str) -> AsyncGenerator[tuple[ServerProcess, httpx.AsyncClient]]:
    with ServerProcess(arguments, command=command) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=600, trust_env=False) as http:
            yield server, http


def node_file(path: Path, models: Path, budget_bytes: int) -> str:
    lines = [f"[node]\nbudget_gib = {budget_bytes / 2**30:.4f}", "[engine]"]
    lines += [f"{key} = {value}" for key, value in ENGINE.items()]
    lines += [f'[models.m{i}]\nsource = "{models / f"m{i}"}"' for i in ORDER]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


async def sizes(models: Path, scratch: Path, texts: dict[str, str]) -> tuple[list[int], int]:
    """Memory of each model, and the most of one in standby; they are packed and compiled for this."""
    needs, standby = list[int](), 0
    async with served("node", node_file(scratch / "sizes.toml", models, 8 << 30)) as (_, http):
        clients = Clients(http, texts)
        for i in ORDER:
            began_s = time.perf_counter()
            await clients.ask(f"m{i}")
            found = {one["name"]: one for one in await report(http)}[f"m{i}"]
            needs.append(found["need_bytes"])
            await act(http, "sleep", f"m{i}")
            found = {one["name"]: one for one in await report(http)}[f"m{i}"]
            standby = max(standby, found["held_bytes"])
            await act(http, "unload", f"m{i}")
            say(
                f"m{i}: {needs[-1] >> 20} MiB, in standby {found['held_bytes'] >> 20} MiB, "
                f"packed and compiled in {time.perf_counter() - began_s:.1f} s"
            )
    return needs, standby


@dataclass
class Calm:
    """Seconds to the first token of each model, from each state, while nothing else runs."""

    found: dict[tuple[str, str], list[float]] = field(default_factory=dict[tuple[str, str], list[float]])

    async def measure(self, clients: Clients) -> None:
        for i in ORDER:
            name = f"m{i}"
            for state, how in (("packed", "unload"), ("standby", "sleep"), ("ready", "")):
                if how:
                    await act(clients.http, how, name)
                self.found.setdefault((name, state), []).append((await clients.ask(name)).first_s)
            await act(clients.http, "unload", name)

    def answers(self, state: str) -> list[Answer]:
        return [
            Answer(model=model, state=state, asked_s=0.0, first_s=first_s, text="")
            for (model, found), times in self.found.items()
            if found == state
            for first_s in times
        ]

    def seconds(self, model: str, state: str) -> float:
        return statistics.median(self.found[model, state])


async def kill(server: ServerProcess, every_s: float, draw: random.Random, ends_s: float) -> int:
    """Engines by chance, whatever they do; returns how many."""
    kills = 0
    while time.perf_counter() + every_s < ends_s:
        await asyncio.sleep(every_s)
        if pids := server.engine_pids:
            os.kill(draw.choice(pids), signal.SIGKILL)
            kills += 1
    return kills


def zipf(draw: random.Random) -> Iterable[str]:
    heights = list(accumulate(1 / rank for rank in range(1, len(ORDER) + 1)))
    while True:
        yield f"m{draw.choices(ORDER, cum_weights=heights)[0]}"


def always(name: str) -> Iterable[str]:
    while True:
        yield name


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class Plan:
    seconds: float
    turns: int
    clients: int
    think_s: float
    kill_s: float
    control_s: float


@dataclass
class Run:
    """The node, the lone model, and what was found."""

    plan: Plan
    node: ServerProcess
    many: Clients
    one: Clients
    calm: Calm = field(default_factory=Calm, init=False)
    kills: int = field(default=0, init=False)
    ratios: list[float] = field(default_factory=list[float], init=False)

    async def turn(self, number: int) -> None:
        draw, plan = random.Random(number), self.plan
        await self.calm.measure(self.many)
        begin = len(self.many.answers), len(self.one.answers)
        ends_s = time.perf_counter() + plan.seconds / plan.turns
        works = [
            self.many.ask_on(zipf(random.Random(draw.random())), draw, plan.think_s, ends_s)
            for _ in range(plan.clients)
        ]
        killing = asyncio.ensure_future(kill(self.node, plan.kill_s, draw, ends_s))
        began_s, starved_before_s = time.perf_counter(), starved_s()
        await asyncio.gather(*works)
        starved = (starved_s() - starved_before_s) / (time.perf_counter() - began_s)
        kills = await killing
        self.kills += kills
        ends_s = time.perf_counter() + plan.control_s
        lone = f"m{ORDER[0]}"
        await asyncio.gather(
            *(self.one.ask_on(always(lone), draw, plan.think_s, ends_s) for _ in range(plan.clients))
        )
        many, one = self.many.answers[begin[0] :], self.one.answers[begin[1] :]
        beside = [a.first_s for a in many if a.model == lone and a.state == "ready"]
        alone = [a.first_s for a in one]
        if beside and alone:
            self.ratios.append(statistics.median(beside) / statistics.median(alone))
            say(
                f"turn {number}: {len(many)} requests, {kills} kills, {len(self.many.failed)} failed; p50 of "
                f"{lone} {statistics.median(beside):.3f} s, alone {statistics.median(alone):.3f} s; load "
                f"{os.getloadavg()[0]:.1f}, processors wanted in vain {starved:.0%} of the time"
            )

    def tell(self) -> None:
        answers, calm = self.many.answers, self.calm
        print(
            f"{len(answers)} requests of {self.plan.clients} clients in {self.plan.seconds:g} s, "
            f"{self.kills} kills: {len(self.many.failed)} failed; alone {len(self.one.failed)} of "
            f"{len(self.one.answers)}"
        )
        for line in (*self.many.failed[:10], *self.one.failed[:10]):
            print(f"  {line}")
        print(
            f"p50 of the most popular model, ready, over alone: {statistics.median(self.ratios):.2f}, "
            f"turns of {min(self.ratios):.2f} to {max(self.ratios):.2f}"
        )
        print("\n| asked when | requests | p50 s | p99 s | over the model's own, calm: p50 | p99 |")
        print("|---|---:|---:|---:|---:|---:|")
        row("any", answers, calm)
        row("any but ready", [a for a in answers if a.state != "ready"], calm)
        for state in sorted({a.state for a in answers}):
            row(state, [a for a in answers if a.state == state], calm)
        for state in ("ready", "standby", "packed"):
            row(f"{state}, calm", calm.answers(state), calm)


def row(name: str, answers: Sequence[Answer], calm: Calm) -> None:
    if not answers:
        return
    own = {"ready": "ready", "standby": "standby"}
    over = [a.first_s / calm.seconds(a.model, own.get(a.state, "packed")) for a in answers]
    times = [a.first_s for a in answers]
    print(
        f"| {name} | {len(times)} | {quantile(times, 0.5):.3f} | {quantile(times, 0.99):.3f} | "
        f"{quantile(over, 0.5):.2f} | {quantile(over, 0.99):.2f} |"
    )


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def run(models: Path, plan: Plan, log: Path | None) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        texts: dict[str, str] = {}
        needs, standby = await sizes(models, Path(scratch), texts)
        budget = max(FIT * sum(needs) // len(needs), max(needs)) + len(needs) * standby
        say(f"budget {budget >> 20} MiB for models of {sum(needs) >> 20} MiB")
        lone = [word for key, value in ENGINE.items() for word in (f"--{key.replace('_', '-')}", value)]
        first = models / f"m{ORDER[0]}"
        async with (
            served("node", node_file(Path(scratch) / "node.toml", models, budget)) as (node, http),
            served("serve", str(first), *lone) as (_, alone),
        ):
            run = Run(plan, node, Clients(http, texts), Clients(alone, texts))
            for number in range(plan.turns):
                await run.turn(number)
            run.tell()
            if log is not None:
                log.write_text(node.log)
                log.with_suffix(".json").write_bytes(msgspec.json.encode((run.many.answers, run.one.answers)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("write", "run"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=1800.0, help="of traffic, all turns together")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--think-s", type=float, default=2.0, help="mean pause of a client")
    parser.add_argument("--kill-s", type=float, default=20.0, help="between two kills")
    parser.add_argument("--control-s", type=float, default=60.0, help="of the lone model's turn")
    parser.add_argument("--log", type=Path, help="for the node's log; the answers lie beside it")
    given = parser.parse_args()
    if given.what == "write":
        write(given.directory.resolve())
        return
    names = ("seconds", "turns", "clients", "think_s", "kill_s", "control_s")
    plan = Plan(**{name: getattr(given, name) for name in names})
    asyncio.run(run(given.directory.resolve(), plan, given.log))


if __name__ == "__main__":
    main()
