"""Servers whose processes are killed and stopped, each with what keeps some kinds of processes at work."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import socket
import tempfile
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from fault_acts import ready
from process_kinds import processes
from process_streams import Ask, ask, ask_both

from firelane.bench.server import ServerProcess
from firelane.errors import MachineError

CORES_OF_ROLES = 4
"""For two engines of two ranks."""
COMPILES_WITHIN_S, SERVES_WITHIN_S = 120.0, 300.0
ENGINES = 2
"""Engines of a server whose kernels are compiled: one serves meanwhile."""
LOOK_S = 0.1


class Servers:
    """Servers that end with the stack. The last one answers. ask: how its clients ask."""

    def __init__(self, servers: list[ServerProcess], ask: Ask) -> None:
        self.servers, self.ask = servers, ask

    def processes(self) -> dict[str, list[int]]:
        """By kind. Raises MachineError where a server has ended."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for server in self.servers:
            if server.process.poll() is not None:
                raise MachineError(f"the server has ended: {server.log.strip().splitlines()[-1]}")
            for kind, pids in processes(server.process.pid).items():
                found[kind] += pids
        return found

    async def prepare(self, draw: random.Random) -> None:
        """Have the processes at work that the next fault may hit."""


class Compiling(Servers):
    """Whenever nothing is compiled and both engines serve, one is killed, and finds no kernels when it starts
    again."""

    def __init__(self, servers: list[ServerProcess], ask: Ask, cache: Path) -> None:
        super().__init__(servers, ask)
        self._cache = cache

    async def prepare(self, draw: random.Random) -> None:
        if "compiler" in self.processes():
            return
        async with asyncio.timeout(SERVES_WITHIN_S):
            while (await asyncio.to_thread(ready, self.servers[0].url)) < ENGINES:
                await asyncio.sleep(LOOK_S)
        for library in (self._cache / "kernels").glob("*.so"):
            library.unlink()
        engines = self.processes()["engine"]
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(engines), signal.SIGKILL)
        async with asyncio.timeout(COMPILES_WITHIN_S):
            while "compiler" not in self.processes():
                await asyncio.sleep(LOOK_S)


def plain(stack: contextlib.ExitStack, args: argparse.Namespace) -> Servers:
    """Engines for prefill and for decode, or one of two ranks where such engines have no cores; tiers."""
    ranks = ["--tensor-parallel-size", "2"] if args.ranks else []
    has_roles = not args.ranks or len(os.sched_getaffinity(0)) >= CORES_OF_ROLES
    roles = ["--prefill", "1", "--decode", "1"] if has_roles else []
    tiers = ["--kv-disk", stack.enter_context(tempfile.TemporaryDirectory()), "--kv-disk-size", "1"]
    server = _started(stack, args, [*ranks, *roles, *tiers, "--gateways", "2"])
    return Servers([server], partial(ask, _port(server)))


def transferring(stack: contextlib.ExitStack, args: argparse.Namespace) -> Servers:
    """Two servers: one has the pages of each prompt from the other one, by NIXL."""
    key = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "cluster.key"
    key.write_text("0123456789abcdef0123456789abcdef\n")
    options = ["--kv-transport", "nixl", "--cluster-key-file", str(key), "--gateways", "2", "--threads", "1"]
    servers = [
        _started(stack, args, [*options, "--kv-transfer-address", f"127.0.0.1:{_free_port()}"]) for _ in "pd"
    ]
    return Servers(servers, partial(ask_both, *map(_port, servers)))


def compiling(stack: contextlib.ExitStack, args: argparse.Namespace) -> Servers:
    """Two engines, of which one compiles its kernels."""
    cache = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    environ = {**os.environ, "FIRELANE_CACHE_DIR": str(cache)}
    server = _started(stack, args, ["--replicas", str(ENGINES), "--gateways", "2"], environ)
    return Compiling([server], partial(ask, _port(server)), cache)


SETTINGS: dict[str, Callable[[contextlib.ExitStack, argparse.Namespace], Servers]] = {
    "plain": plain,
    "nixl": transferring,
    "compilers": compiling,
}


def _started(
    stack: contextlib.ExitStack,
    args: argparse.Namespace,
    options: list[str],
    environ: dict[str, str] | None = None,
) -> ServerProcess:
    own = [] if args.model is None else [str(args.model)]
    words = [*own, *options, "--max-num-seqs", "128", "--kv-cache-gib", "0.5"]
    return stack.enter_context(ServerProcess(words, environ=environ))


def _port(server: ServerProcess) -> int:
    return urlsplit(server.url).port or 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]
