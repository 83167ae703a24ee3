"""Faults of processes under test, and requests to a server meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import httpx

from firelane.bench.server import ServerProcess

PATIENCE_S = 300.0
TIMEOUT_S = 3
"""An engine without a sign of life for so many seconds is taken for dead."""
BRIEF_S, LONG_S, PAUSE_S, LOSSY_S = 1.0, 8.0, 4.0, 6.0
"""A disturbance that a connection outlasts, and one after which it is given up; of a process that is stopped
and goes on, and of a network that loses packets."""


class Fault(NamedTuple):
    """hits: the kind of its place; act: returns when it is over, not when all serve again."""

    hits: str
    act: Callable[[str], None]


def end(pid: str, number: signal.Signals) -> None:
    """Kill or stop an engine, and wait until it is gone: whoever keeps it ends one that shows no life."""
    os.kill(int(pid), number)
    wait(lambda: not Path(f"/proc/{pid}").exists())


def pause(pid: str, seconds: float = PAUSE_S) -> None:
    os.kill(int(pid), signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(int(pid), signal.SIGCONT)


def kill(host: ServerProcess) -> None:
    """With its engine, which follows by itself."""
    engines = host.engine_pids
    host.process.kill()
    wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in engines))
    host.stop()


def wait(condition: Callable[[], bool]) -> None:
    """Raises TimeoutError."""
    ends_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > ends_s:
            raise TimeoutError("the servers do not come back")
        time.sleep(0.1)


def ready(url: str) -> int:
    """Number of engines that serve."""
    return counters(url, "replicas_up")["replicas_up"]


def counters(url: str, *names: str) -> dict[str, int]:
    lines = httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text.splitlines()
    found = dict.fromkeys(names, 0)
    for line in lines:
        name = line.partition("{")[0].partition(" ")[0].removeprefix("firelane:").removesuffix("_total")
        if name in found and not line.startswith("#"):
            found[name] += int(float(line.split()[-1]))
    return found


def certificate(folder: Path, addresses: list[str]) -> dict[str, Path]:
    """One that signs itself, for all hosts: the options that end with these words, and their files."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    names = ",".join(f"IP:{address}" for address in addresses)
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    files = ["-days", "2", "-subj", "/CN=cluster", "-addext", f"subjectAltName={names}"]
    subprocess.run([*words, *files, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return {"ca": cert, "cert": cert, "key": key}
