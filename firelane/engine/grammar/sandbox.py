"""A process in which grammars are tried out before this one compiles them."""

from __future__ import annotations

import select
from pathlib import Path

import msgspec

from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.source import NAMES
from firelane.engine.grammar.trial_process import ChildTrial, StartTrial, Trial
from firelane.errors import QueueTimeoutError, RequestError
from firelane.wire.frames import Grammar

START_S = 60.0
"""Until a new process says that it is there: long on a busy machine."""


class Sandbox:
    """Starts the process when it is needed, and again when a grammar has ended it. For one thread."""

    def __init__(
        self, model_dir: Path, vocab_size: int, limits: GrammarLimits, start: StartTrial = ChildTrial
    ) -> None:
        self._model_dir = model_dir
        self._vocab_size = vocab_size
        self._limits = limits
        self._start = start
        self._process: Trial | None = None

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
            process.end()

    def _ask(self, grammar: Grammar) -> str | None:
        """None where the process ended. Raises QueueTimeoutError."""
        process = self._running()
        try:
            process.stdin.write(msgspec.json.encode(grammar) + b"\n")
            process.stdin.flush()
            line = self._line(process, self._limits.trial_wall_s)
        except BrokenPipeError:
            return None
        return msgspec.json.decode(line, type=str) if line.endswith(b"\n") else None

    def _running(self) -> Trial:
        if self._process is None or self._process.has_ended:
            self.close()
            limits = msgspec.json.encode(self._limits).decode()
            self._process = self._start((limits, str(self._model_dir), str(self._vocab_size)))
            self._line(self._process, START_S)
        return self._process

    def _line(self, process: Trial, timeout_s: float) -> bytes:
        """b"" where the process has ended: it may have used up its processor time. One that lives and has
        not written anything is ended, and QueueTimeoutError raised."""
        poller = select.poll()
        poller.register(process.stdout, select.POLLIN)
        if poller.poll(timeout_s * 1000):
            return process.stdout.readline()
        self.close()
        raise QueueTimeoutError(
            f"the grammar was not tried out within {timeout_s:g} s, the machine is busy: try again later"
        )
