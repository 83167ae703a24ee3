"""A `firelane serve` process under measurement: started, awaited, its processes' CPU time read, stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from firelane.errors import MachineError

READY = re.compile(
    r'^(?:serving +.* at (?=http)|engine +\S+ at |.*"event": "serving".*"url": ")([^\s";]+)', re.MULTILINE
)
POLL_S = 0.005


class ServerProcess:
    """`firelane serve ARGUMENTS --port 0` as a child, or another command that serves; a context manager that
    stops it.

    `url` (of `firelane engine`: HOST:PORT) is known when the constructor returns: the server is ready. `log`
    is its standard error so far. Raises MachineError, with the server's last line, when it ends or stays
    silent for `timeout_s`. prefix: words before the command, such as those of `ip netns exec`, which end in
    the same process.
    """

    def __init__(
        self,
        arguments: Sequence[str] = (),
        *,
        command: str = "serve",
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        self.started_s = time.perf_counter()
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "firelane", command, "--port", "0", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            env=None if environ is None else dict(environ),
        )
        self.url = self._wait_ready(timeout_s)
        self.ready_s = time.perf_counter() - self.started_s

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def log(self) -> str:
        size = os.fstat(self._stderr.fileno()).st_size
        return os.pread(self._stderr.fileno(), size, 0).decode(errors="replace")

    @property
    def gateway_pid(self) -> int:
        return self.process.pid

    @property
    def engine_pids(self) -> list[int]:
        """Engines that run; not what else the gateway and its engines have started."""
        return [pid for pid in descendants(self.process.pid) if _is_engine(pid)]

    def stop(self, timeout_s: float = 30.0) -> int:
        """SIGTERM, then SIGKILL after `timeout_s`; returns the exit code. Idempotent."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                for pid in descendants(self.process.pid):
                    os.kill(pid, signal.SIGKILL)
                self.process.kill()
                self.process.wait()
        if not self._stderr.closed:
            self._stderr.close()
        return self.process.returncode

    def _wait_ready(self, timeout_s: float) -> str:
        while time.perf_counter() - self.started_s < timeout_s:
            found = READY.search(self.log)
            if found is not None:
                return found[1]
            if self.process.poll() is not None:
                break
            time.sleep(POLL_S)
        last = (self.log.strip().splitlines() or ["it said nothing"])[-1]
        self.stop(1.0)
        raise MachineError(f"firelane serve did not become ready: {last}")


def descendants(pid: int) -> list[int]:
    """Process ids below `pid`, from /proc. Raises MachineError where there is no /proc."""
    if not Path("/proc/self/stat").exists():
        raise MachineError("this benchmark reads /proc: run it on Linux")
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                parents[int(entry.name)] = int(fields[1])
    found = [pid]
    for parent in found:
        found += [child for child, its in parents.items() if its == parent]
    return found[1:]


def _is_engine(pid: int) -> bool:
    """Helpers that an engine forks look alike, but lead no process group."""
    try:
        command, leads = Path(f"/proc/{pid}/cmdline").read_bytes(), os.getpgid(pid) == pid
    except (FileNotFoundError, ProcessLookupError):
        return False
    return leads and b"firelane.engine\0" in command


def starved_s(pressure: Path = Path("/proc/pressure/cpu")) -> float:
    """Time so far in which something on this machine waited for a processor (Documentation/accounting/psi.rst
    of Linux); 0 where the system does not count it."""
    try:
        return int(pressure.read_text().partition("total=")[2].split()[0]) / 1e6
    except (OSError, ValueError, IndexError):
        return 0.0


def cpu_seconds(pid: int, *, with_ended: bool = False) -> float:
    """User and system time of all threads of a process, in seconds; 0 when it is gone. with_ended: and of
    its children that have ended, and theirs."""
    fields = _stat(pid)
    ticks = sum(int(field) for field in fields[11 : 15 if with_ended else 13])
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name (which may hold blanks); [] when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
