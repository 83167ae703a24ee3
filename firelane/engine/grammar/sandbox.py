"""A process in which grammars are tried out before this one compiles them."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path
from typing import IO

import msgspec

from firelane import env
from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.source import NAMES
from firelane.errors import RequestError
from firelane.wire.frames import Grammar


class Sandbox:
    """Starts the process when it is needed, and again when a grammar has ended it. For one thread."""

    def __init__(self, model_dir: Path, vocab_size: int, limits: GrammarLimits) -> None:
        self._model_dir = model_dir
        self._vocab_size = vocab_size
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None

    def try_out(self, grammar: Grammar) -> None:
        """Raises RequestError where the grammar is wrong or takes too much."""
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
                    pipe.close()

    def _ask(self, grammar: Grammar) -> str | None:
        """None where the process ended, or does not answer."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(grammar) + b"\n")
            process.stdin.flush()
            line = _line(process.stdout, self._limits.trial_wall_s)
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
        return self._process


def _line(pipe: IO[bytes], timeout_s: float) -> bytes:
    """b"" where none comes in time."""
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    return pipe.readline() if poller.poll(timeout_s * 1000) else b""
