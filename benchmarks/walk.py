"""Files of the package that one streaming chat enters, in the gateway's process and in the engine's.

    python -m benchmarks.walk [MODEL] [--files]

A profiler notes each call of both main threads while the chat runs; what a server does by itself meanwhile,
once a second, is among it. The chat runs twice: the second one is counted, so that what is made once is not.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import firelane
from firelane.bench.client import first_model
from firelane.bench.server import ServerProcess, descendants
from firelane.bench.table import format_table

PACKAGE = str(Path(firelane.__file__).parent)
MARK = "walked "
SERVER = "--server"
BEGIN, END = signal.SIGRTMIN, signal.SIGRTMIN + 1
TOKENS = 16
WAIT_S = 10.0


class Walk:
    """Notes which files a process enters between two signals, and prints them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._entered: set[str] = set()
        signal.signal(BEGIN, self._begin)
        signal.signal(END, self._end)

    def _begin(self, _number: int, _frame: FrameType | None) -> None:
        self._entered.clear()
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            self._entered.add(frame.f_code.co_filename)

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        sys.setprofile(None)
        files = sorted(os.path.relpath(f, PACKAGE) for f in self._entered if f.startswith(PACKAGE))
        line = json.dumps({"process": self._name, "pid": os.getpid(), "files": files})
        print(f"{MARK}{line}", file=sys.stderr, flush=True)


def run_server(arguments: list[str]) -> int:
    """`firelane ARGUMENTS` in this process, with engines that note what they enter, too."""
    from firelane.cli import main as firelane_main
    from firelane.node import engine_process

    engine_process.MODULE = "benchmarks.walk"
    Walk("gateway")
    return firelane_main(arguments)


def run_engine(arguments: list[str]) -> int:
    from firelane.engine.__main__ import main as engine_main

    Walk("engine")
    return engine_main(arguments)


def chat(url: str, model: str) -> None:
    """One streaming chat, read to its end."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Say something."}],
        "max_tokens": TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    data, headers = json.dumps(body).encode(), {"content-type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/v1/chat/completions", data, headers)
    ) as answer:
        answer.read()


def walks_of(server: ServerProcess) -> list[dict[str, Any]]:
    """The files and functions that each process entered while one chat ran, one entry for each process."""
    model = first_model(server.url)
    chat(server.url, model)
    pids = [server.gateway_pid, *filter(_is_walking, descendants(server.gateway_pid))]
    for number in (BEGIN, END):
        for pid in pids:
            os.kill(pid, number)
        if number == BEGIN:
            chat(server.url, model)
    deadline_s = time.monotonic() + WAIT_S
    while server.log.count(MARK) < len(pids):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"the processes did not tell: {server.log}")
        time.sleep(0.01)
    return [json.loads(line.split(MARK, 1)[1]) for line in server.log.splitlines() if MARK in line]


def _is_walking(pid: int) -> bool:
    """Whether it is an engine: helpers that it forks look alike, but lead no process group."""
    return os.getpgid(pid) == pid and "benchmarks.walk" in Path(
        f"/proc/{pid}/cmdline"
    ).read_bytes().decode().split("\0")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?")
    parser.add_argument("--files", action="store_true", help="name each file")
    arguments = parser.parse_args()
    command = [arguments.model] if arguments.model else []
    with ServerProcess(command, prefix=[sys.executable, __file__, SERVER]) as server:
        walks = walks_of(server)
    rows = [[walk["process"], str(len(walk["files"])), _by_package(walk["files"])] for walk in walks]
    print(format_table(["process", "files", "by package"], rows))
    for walk in walks if arguments.files else []:
        print(f"\n{walk['process']}:", *walk["files"], sep="\n    ")


def _by_package(files: list[str]) -> str:
    counts = Counter(file.partition("/")[0] for file in files)
    return ", ".join(f"{package} {count}" for package, count in counts.most_common())


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVER]:  # then the words of the command: PYTHON -m firelane ARGUMENTS
        sys.exit(run_server(sys.argv[5:]))
    if sys.argv[1:2] and sys.argv[1].isdigit():
        sys.exit(run_engine(sys.argv[1:]))
    main()
