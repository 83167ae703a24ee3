"""Several gateway processes on one port: tokens a second and processor time a token of N = 1 and N = 2, in
turns, and how evenly connections fall on the processes.

    python benchmarks/gateways.py tokens [--tokens 400] [--rounds 1] [--words 40] [--turns 5]
    python benchmarks/gateways.py accept [--streams 200] [--turns 10]

`tokens`: servers on the null backend, whose engine takes processor time on the same cores as the gateways and
this program, which sends all requests and reads all streams in one process. --baseline: another checkout,
measured with one process beside them. `accept`: two processes accept the connections of a burst, from one
listening socket that both have or from a socket each (SO_REUSEPORT).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import platform
import re
import socket
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from http_servers import drive_requests

from firelane.bench.server import ServerProcess, cpu_seconds, descendants
from firelane.link.listening import listening_sockets

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and"]
GATEWAYS = 2


@dataclass(frozen=True, kw_only=True)
class Found:
    """The figures of one run. *_us: processor time a token."""

    tokens_per_s: float
    gateways_us: float
    owner_us: float
    engine_us: float
    load_us: float


class Server:
    """A server of so many gateways, of this checkout or another one."""

    def __init__(self, name: str, gateways: int, streams: int, checkout: Path | None) -> None:
        self.name = name
        arguments = ["--backend", "null", "--max-num-seqs", str(streams)]
        arguments += ["--gateways", str(gateways)] if gateways > 1 else []
        environ = dict(os.environ) | ({"PYTHONPATH": str(checkout)} if checkout else {})
        self._server = ServerProcess(arguments, environ=environ)
        self.port = int(self._server.url.rpartition(":")[2])
        own = [pid for pid in descendants(self._server.process.pid) if _is_gateway(pid)]
        self.owner = [self._server.process.pid] if own else []
        self.gateways = own or [self._server.process.pid]
        self.engines = self._server.engine_pids

    @property
    def shares(self) -> list[int]:
        """Requests that each process has answered."""
        found = re.findall(r"gateway=(\d+) request_ended", self._server.log)
        return [found.count(str(index + 1)) for index in range(len(self.gateways))]

    def stop(self) -> None:
        self._server.stop()


def _is_gateway(pid: int) -> bool:
    try:
        return b"firelane.server.gateway_process\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


async def drive(server: Server, streams: int, body: bytes, rounds: int) -> int:
    """Chunks that came, of all rounds."""
    chunks = 0
    for _ in range(rounds):
        chunks += await drive_requests(server.port, streams, b"/v1/completions", body)
    return chunks


def run(server: Server, args: argparse.Namespace, tokens: int) -> Found:
    body = {
        "prompt": " ".join(itertools.islice(itertools.cycle(WORDS), args.words)),
        "max_tokens": tokens,
        "stream": True,
    }
    text = json.dumps(body | {"ignore_eos": True, "temperature": 0}).encode()
    streams = args.streams * args.rounds
    groups = (server.gateways, server.owner, server.engines, [os.getpid()])
    before = [sum(map(cpu_seconds, group)) for group in groups]
    began_s = time.perf_counter()
    chunks = uvloop.run(drive(server, args.streams, text, args.rounds))
    took_s = time.perf_counter() - began_s
    assert chunks >= 0.9 * streams * tokens, chunks  # half a character makes no event
    used = [sum(map(cpu_seconds, group)) - early for group, early in zip(groups, before, strict=True)]
    gateways, owner, engine, load = (one / (streams * tokens) * 1e6 for one in used)
    return Found(
        tokens_per_s=streams * tokens / took_s,
        gateways_us=gateways,
        owner_us=owner,
        engine_us=engine,
        load_us=load,
    )


def measure_tokens(args: argparse.Namespace) -> None:
    kinds = [("N = 1", 1, None), (f"N = {GATEWAYS}", GATEWAYS, None)]
    if args.baseline is not None:
        kinds.insert(0, ("before", 1, args.baseline))
    servers = [Server(name, number, args.streams, checkout) for name, number, checkout in kinds]
    try:
        for server in servers:
            run(server, args, 20)
        turns = [[run(server, args, args.tokens) for server in servers] for _ in range(args.turns)]
        print(
            f"{args.rounds} x {args.streams} streams of {args.tokens} tokens, prompts of {args.words} words, "
            f"{args.turns} turns; medians"
        )
        print("| | tokens/s | gateways, us a token | owner | engine | load generator |")
        print("|---|---|---|---|---|---|")
        for server, found in zip(servers, zip(*turns, strict=True), strict=True):
            print(f"| {server.name} | {_row(list(found))} |")
        first = kinds[0][0]
        for place, server in enumerate(servers[1:], 1):
            speed = [turn[place].tokens_per_s / turn[0].tokens_per_s for turn in turns]
            cost = [turn[place].gateways_us / turn[0].gateways_us for turn in turns]
            print(
                f"{server.name} over {first}, median of ratios: tokens/s {statistics.median(speed):.3f}, "
                f"gateways' processor time a token {statistics.median(cost):.3f}"
            )
        print(f"requests by process, N = {GATEWAYS}: {servers[-1].shares}")
    finally:
        for server in servers:
            server.stop()


def _row(found: list[Found]) -> str:
    speed = statistics.median(one.tokens_per_s for one in found)
    names = ("gateways_us", "owner_us", "engine_us", "load_us")
    return " | ".join([f"{speed:,.0f}", *(f"{_median(found, name):.1f}" for name in names)])


def _median(found: list[Found], name: str) -> float:
    return statistics.median(getattr(one, name) for one in found)


class _Counting(asyncio.Protocol):
    accepted = 0

    def connection_made(self, transport: Any) -> None:  # noqa: ARG002
        type(self).accepted += 1


async def _accept(sock: socket.socket, pipe: Any) -> None:
    server = await asyncio.get_running_loop().create_server(_Counting, sock=sock)
    pipe.send(None)
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    pipe.send(_Counting.accepted)
    server.close()


def _accepting(sock: socket.socket, pipe: Any) -> None:
    uvloop.run(_accept(sock, pipe))


def burst(sockets: list[socket.socket], streams: int) -> list[int]:
    """Connections that each of the processes gets."""
    fork: Any = multiprocessing.get_context("fork")
    pipes = [multiprocessing.Pipe() for _ in sockets]
    children = [
        fork.Process(target=_accepting, args=(sock, pipe[1]))
        for sock, pipe in zip(sockets, pipes, strict=True)
    ]
    for child, (pipe, _) in zip(children, pipes, strict=True):
        child.start()
        pipe.recv()
    clients = [socket.create_connection(sockets[0].getsockname()) for _ in range(streams)]
    time.sleep(0.2)
    found: list[int] = []
    for child, (pipe, _) in zip(children, pipes, strict=True):
        pipe.send(None)
        found.append(pipe.recv())
        child.join()
    for one in (*clients, *sockets):
        one.close()
    return found


def measure_accept(args: argparse.Namespace) -> None:
    shared: list[list[int]] = []
    apart: list[list[int]] = []
    for _ in range(args.turns):
        (sock,) = listening_sockets("127.0.0.1", 0, 1)
        shared.append(burst([sock, sock], args.streams))
        apart.append(burst(listening_sockets("127.0.0.1", 0, 2), args.streams))
    print(f"a burst of {args.streams} connections on two processes, {args.turns} turns: the larger share")
    for name, found in (("one socket for both", shared), ("a socket each", apart)):
        parts = [max(one) / sum(one) for one in found]
        print(f"| {name} | median {statistics.median(parts):.1%} | most {max(parts):.1%} |")


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("what", choices=("tokens", "accept"))
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1, help="of all streams, one after the other")
    parser.add_argument("--words", type=int, default=40, help="of a prompt")
    parser.add_argument("--baseline", type=Path, metavar="DIR")
    args = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    (measure_tokens if args.what == "tokens" else measure_accept)(args)


if __name__ == "__main__":
    main()
