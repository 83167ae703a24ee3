"""Traffic over twelve models of 0.1 to 1 B parameters on a node with memory for three, by Zipf's law, with
engines that are killed; in turns with as many clients of one model that has a server of its own.

    python benchmarks/node_traffic.py write DIR          the models, random weights: 11 GB
    python benchmarks/node_traffic.py run DIR            packs and compiles them at first: 8 GB of cache
    python benchmarks/node_traffic.py report DIR         the tables, of the turns that there are

Each turn: what each model takes to come while nothing else runs, traffic, and the lone model. Answers have to
be those that each model gave at first, byte for byte. All that happens is written to a file (--records) as it
goes; a run that ended early goes on with the turn in which it was.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import httpx
import msgspec
from node_traffic_models import ORDER, write
from node_traffic_report import tell
from node_traffic_waits import Answer, Failed, Record, Sizes, Turn, node_events

from firelane.bench.server import ServerProcess, cpu_seconds, descendants, starved_s

FIT = 3
TOKENS = 8
PROMPT = "The quick brown fox jumps over the lazy dog and"
ENGINE = {"kv_cache_gib": "0.0625", "max_num_seqs": "4", "max_model_len": "1024"}


class Records:
    """The file of all that happened, a line each, written at once. Turns that did not end are left out."""

    def __init__(self, path: Path) -> None:
        decode = msgspec.json.Decoder(Record).decode
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []  # the last one may be half
        found = [decode(line) for line in lines]
        done = {one.turn for one in found if isinstance(one, Turn)}
        self.all = [one for one in found if isinstance(one, Sizes) or one.turn in done]
        self.path, self.next_turn = path, 1 + max(done, default=-1)

    def start(self) -> None:
        """Leave what is kept alone in the file. Raises OSError."""
        lines = [msgspec.json.encode(one) + b"\n" for one in self.all]
        self.path.write_bytes(b"".join(lines))

    def add(self, *found: Record) -> None:
        self.all += found
        with self.path.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(one) + b"\n" for one in found))

    @property
    def sizes(self) -> Sizes | None:
        return next((one for one in self.all if isinstance(one, Sizes)), None)


@dataclass
class Clients:
    """Requests to one server, each to be answered as that model always does. alone: the lone model's."""

    http: httpx.AsyncClient
    texts: dict[str, str]
    records: Records | None = None
    alone: bool = False
    turn: int = field(default=0, init=False)

    async def ask(self, model: str, state: str = "", *, calm: bool = False) -> Answer:
        """Raises RuntimeError, httpx.HTTPError."""
        before_s, asked_at, began_s = taken_s(), time.time(), time.perf_counter()
        first_s, text = await stream(self.http, model, began_s)
        share = (taken_s() - before_s) / (time.perf_counter() - began_s) / (os.cpu_count() or 1)
        if self.texts.setdefault(model, text) != text:
            raise RuntimeError(f"another answer than at first: {text!r} for {self.texts[model]!r}")
        return Answer(
            turn=self.turn,
            model=model,
            state=state,
            asked_at=asked_at,
            first_s=first_s,
            text=text,
            taken=max(0.0, share),
            calm=calm,
            alone=self.alone,
        )

    async def try_asking(self, model: str, state: str = "", *, calm: bool = False) -> None:
        """With a record of how it went."""
        assert self.records is not None
        try:
            self.records.add(await self.ask(model, state, calm=calm))
        except (RuntimeError, httpx.HTTPError) as error:
            why = f"{state}: {type(error).__name__}: {error}"
            self.records.add(Failed(turn=self.turn, model=model, why=why, alone=self.alone))

    async def ask_on(self, names: Iterable[str], draw: random.Random, think_s: float, ends_s: float) -> None:
        """One client: a request, a pause, until then."""
        for name in names:
            await asyncio.sleep(draw.expovariate(1 / think_s))
            if time.perf_counter() >= ends_s:
                return
            state = (await states(self.http)).get(name, "ready")
            await self.try_asking(name, state)


def taken_s() -> float:
    """Processor time so far that this machine gave to others than this benchmark and what it has started, or
    did not get from its host."""
    ticks = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    busy_s = (sum(ticks) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK")  # but idle, and waiting for a drive
    mine = (os.getpid(), *descendants(os.getpid()))
    return busy_s - sum(cpu_seconds(pid, with_ended=True) for pid in mine)


async def stream(http: httpx.AsyncClient, model: str, began_s: float) -> tuple[float, str]:
    """Seconds since then to the first token, and the text. Raises RuntimeError, httpx.HTTPError."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    first_s, text, last = 0.0, "", ""
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
    """{} where the server does not tell."""
    with contextlib.suppress(httpx.HTTPError):
        return {one["name"]: one["state"] for one in await report(http)}
    return {}


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


async def sizes(models: Path, scratch: Path) -> Sizes:
    """Memory of each model, and the most of one in standby; they are packed and compiled for this."""
    needs, standby, texts = list[int](), 0, dict[str, str]()
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
    return Sizes(needs=needs, standby=standby, texts=texts)


async def measure_calm(clients: Clients) -> None:
    """Each model, from each state, while nothing else is asked."""
    for i in ORDER:
        name = f"m{i}"
        for state, how in (("packed", "unload"), ("standby", "sleep"), ("ready", "")):
            with contextlib.suppress(httpx.HTTPError):
                if how:
                    await act(clients.http, how, name)
                await clients.try_asking(name, state, calm=True)
        with contextlib.suppress(httpx.HTTPError):
            await act(clients.http, "unload", name)


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
    """The node, and the lone model."""

    plan: Plan
    node: ServerProcess
    many: Clients
    one: Clients
    records: Records

    async def turn(self, number: int) -> None:
        draw, plan = random.Random(number), self.plan
        self.many.turn = self.one.turn = number
        began_at = time.time()
        await measure_calm(self.many)
        began_s, starved_before_s = time.perf_counter(), starved_s()
        kills = await self._traffic(draw, began_s + plan.seconds / plan.turns)
        seconds = time.perf_counter() - began_s
        starved = (starved_s() - starved_before_s) / seconds
        ends_s, lone = time.perf_counter() + plan.control_s, always(f"m{ORDER[0]}")
        await asyncio.gather(
            *(self.one.ask_on(lone, draw, plan.think_s, ends_s) for _ in range(plan.clients))
        )
        load = os.getloadavg()[0]
        self.records.add(
            *node_events(self.node.log, number, began_at),
            Turn(turn=number, seconds=seconds, kills=kills, load=load, starved=starved),
        )
        failed = sum(isinstance(one, Failed) for one in self.records.all)
        say(
            f"turn {number}: {kills} kills, {failed} failed so far; load {load:.1f}, "
            f"processors wanted in vain {starved:.0%} of the time"
        )

    async def _traffic(self, draw: random.Random, ends_s: float) -> int:
        """Returns how many engines were killed."""
        killing = asyncio.ensure_future(kill(self.node, self.plan.kill_s, draw, ends_s))
        await asyncio.gather(
            *(
                self.many.ask_on(zipf(random.Random(draw.random())), draw, self.plan.think_s, ends_s)
                for _ in range(self.plan.clients)
            )
        )
        return await killing


async def run(models: Path, plan: Plan, records: Records) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        records.start()
        if records.sizes is None:
            records.add(await sizes(models, Path(scratch)))
        found = records.sizes
        assert found is not None
        needs = found.needs
        budget = max(FIT * sum(needs) // len(needs), max(needs)) + len(needs) * found.standby
        say(f"budget {budget >> 20} MiB for models of {sum(needs) >> 20} MiB")
        lone = [word for key, value in ENGINE.items() for word in (f"--{key.replace('_', '-')}", value)]
        first = models / f"m{ORDER[0]}"
        config = node_file(Path(scratch) / "node.toml", models, budget)
        async with (
            served("node", config, "--log-format", "json") as (node, http),
            served("serve", str(first), *lone) as (_, alone),
        ):
            clients = Clients(http, found.texts, records), Clients(alone, found.texts, records, alone=True)
            run = Run(plan, node, *clients, records)
            for number in range(records.next_turn, plan.turns):
                await run.turn(number)
                records.path.with_suffix(".log").write_text(node.log)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("write", "run", "report"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=1800.0, help="of traffic, all turns together")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--think-s", type=float, default=2.0, help="mean pause of a client")
    parser.add_argument("--kill-s", type=float, default=20.0, help="between two kills")
    parser.add_argument("--control-s", type=float, default=60.0, help="of the lone model's turn")
    parser.add_argument("--records", type=Path, help="default: DIR/records.jsonl")
    given = parser.parse_args()
    directory = given.directory.resolve()
    if given.what == "write":
        write(directory)
        return
    records = Records(given.records or directory / "records.jsonl")
    if given.what == "run":
        names = ("seconds", "turns", "clients", "think_s", "kill_s", "control_s")
        plan = Plan(**{name: getattr(given, name) for name in names})
        asyncio.run(run(directory, plan, records))
    tell(records.all, lone=f"m{ORDER[0]}")


if __name__ == "__main__":
    main()
