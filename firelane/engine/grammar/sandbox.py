"""A process in which grammars are tried out before this one compiles them."""

from __future__ import annotations

import select
from collections.abc import Callable
from pathlib import Path

import msgspec

from firelane.child_process import Replacements
from firelane.child_process.ending import in_words, is_own_doing
from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.source import NAMES
from firelane.engine.grammar.trial_process import StartTrial, Trial
from firelane.errors import ProcessDeadError, QueueTimeoutError, RequestError
from firelane.wire.frames import Grammar

KIND = "grammar_trial"
START_S = 60.0
"""Until a new process says that it is there: long on a busy machine."""
TRIES = 3
"""Processes that one grammar gets, where they are killed from outside or do not answer."""


class _LostError(Exception):
    """The process ended through no fault of its grammar."""


class Sandbox:
    """Starts the process when it is needed, and again when it has ended. For one thread."""

    def __init__(
        self,
        model_dir: Path,
        vocab_size: int,
        limits: GrammarLimits,
        start: StartTrial,
        replaced: Replacements,
    ) -> None:
        self._arguments = (msgspec.json.encode(limits).decode(), str(model_dir), str(vocab_size))
        self._limits, self._start, self._replaced = limits, start, replaced
        self._process: Trial | None = None

    def try_out(self, grammar: Grammar) -> None:
        """Raises RequestError where the grammar is wrong or takes too much, QueueTimeoutError where the
        machine has no time for it, ProcessDeadError where process after process is lost, MachineError where
        there will be none."""
        failure: Callable[[], Exception] = _always_lost
        for _ in range(TRIES):
            try:
                answer = self._ask(grammar)
            except TimeoutError:
                self._lose(f"has not answered for {self._limits.trial_wall_s:g} s")
                failure = self._too_late
            except _LostError as error:
                self._lose(str(error))
                failure = _always_lost
            else:
                self._replaced.works(KIND)
                if answer:
                    raise RequestError(answer)
                return
        raise failure()

    def close(self) -> int | None:
        """End the process; idempotent. Returns its code, as Trial.end."""
        process, self._process = self._process, None
        return None if process is None else process.end()

    def _ask(self, grammar: Grammar) -> str:
        """What is wrong with the grammar; "" = nothing. Raises TimeoutError and _LostError."""
        process = self._running()
        try:
            process.stdin.write(msgspec.json.encode(grammar) + b"\n")
            process.stdin.flush()
            line = self._line(process, self._limits.trial_wall_s)
        except BrokenPipeError:
            line = b""
        if line.endswith(b"\n"):
            return msgspec.json.decode(line, type=str)
        code = self.close()
        if is_own_doing(code):
            return self._too_much(grammar)
        raise _LostError(in_words(code))

    def _running(self) -> Trial:
        """Raises TimeoutError and _LostError."""
        if self._process is not None and self._process.has_ended:
            self._lose(in_words(self.close()))
        if self._process is None:
            try:
                self._process = self._start(self._arguments)
            except OSError as error:
                raise _LostError(f"was not started: {error.strerror or error}") from error
            self._line(self._process, START_S)
        return self._process

    def _line(self, process: Trial, timeout_s: float) -> bytes:
        """b"" where the process has ended. Raises TimeoutError, where one that lives has not written
        anything."""
        poller = select.poll()
        poller.register(process.stdout, select.POLLIN)
        if not poller.poll(timeout_s * 1000):
            raise TimeoutError
        return process.stdout.readline()

    def _lose(self, reason: str) -> None:
        self.close()
        self._replaced.note(KIND, reason)

    def _too_much(self, grammar: Grammar) -> str:
        limits = self._limits
        return (
            f"{NAMES[grammar.kind]} takes more than {limits.trial_cpu_s:g} s or "
            f"{limits.trial_bytes >> 20} MB to compile: simplify it"
        )

    def _too_late(self) -> QueueTimeoutError:
        wall_s = self._limits.trial_wall_s
        return QueueTimeoutError(
            f"the grammar was not tried out within {wall_s:g} s, the machine is busy: try again later"
        )


def _always_lost() -> ProcessDeadError:
    return ProcessDeadError(f"{TRIES} processes were lost that tried the grammar out: try again later")
