"""A process in which grammars are tried out before this one compiles them."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from pathlib import Path

import msgspec

from firelane import env
from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.source import NAMES
from firelane.errors import QueueTimeoutError, RequestError
from firelane.wire.frames import Grammar

START_S = 60.0
"""Until a new process says that it is there: long on a busy machine."""


class Sandbox:
    """Starts the process when it is needed, and again when a grammar has ended it. For one thread."""

    def __init__(self, model_dir: Path, vocab_size: int, limits: GrammarLimits) -> None:
        self._model_dir = model_dir
        self._vocab_size = vocab_size
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None

    def try_out(self, grammar: Grammar) -> None:
        """Raises RequestError where the grammar is wrong or takes too much, QueueTimeoutError where the
        machine has no time for it."""
        answer = self._ask(grammar)
        if answer is None:
            self.close()
            limits = self._limits
            raise RequestError(
                f"{NAMES[grammar.kind]} takes more than {limits.trial_cpu_s:g} s or "
                f"{limits.trial_bytes >> 20} MB to compile: simplify it"
            )
        if answer:
            raise RequestError(answer)

    def close(self) -> None:
        """End the process; idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # of what it did not read any more
                        pipe.close()

    def _ask(self, grammar: Grammar) -> str | None:
        """None where the process ended. Raises QueueTimeoutError."""
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(msgspec.json.encode(grammar) + b"\n")
            process.stdin.flush()
            line = self._line(process, self._limits.trial_wall_s)
        except BrokenPipeError:
            return None
        return msgspec.json.decode(line, type=str) if line.endswith(b"\n") else None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            limits = msgspec.json.encode(self._limits).decode()
            arguments = (limits, str(self._model_dir), str(self._vocab_size))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "firelane.engine.grammar.trial", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=env.for_child(PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
            )
            self._line(self._process, START_S)
        return self._process

    def _line(self, process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
        """b"" where the process has ended: it may have used up its processor time. One that lives and has
        not written anything is ended, and QueueTimeoutError raised."""
        assert process.stdout is not None
        poller = select.poll()
        poller.register(process.stdout, select.POLLIN)
        if poller.poll(timeout_s * 1000):
            return process.stdout.readline()
        self.close()
        raise QueueTimeoutError(
            f"the grammar was not tried out within {timeout_s:g} s, the machine is busy: try again later"
        )
