"""A process in which grammars are tried out before this one compiles them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from firelane.child_process import Replacements
from firelane.child_process.worker import LostError, OverrunError, StartWorker, Worker, WorkerLimits, framed
from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.source import NAMES
from firelane.engine.grammar.trial import Trial
from firelane.errors import ProcessDeadError, QueueTimeoutError, RequestError
from firelane.wire.frames import Grammar

KIND = "grammar_trial"
TRIES = 3
"""Processes that one grammar gets, where they are killed from outside or do not answer."""


class Sandbox:
    """Starts the process when it is needed, and again when it has ended. For one thread."""

    def __init__(
        self,
        model_dir: Path,
        vocab_size: int,
        limits: GrammarLimits,
        start: StartWorker,
        replaced: Replacements,
    ) -> None:
        self._limits = limits
        trial = framed(msgspec.json.encode(Trial(limits, str(model_dir), vocab_size)))
        most = WorkerLimits(tries=TRIES, answer_s=limits.trial_wall_s)
        self.worker = Worker(KIND, start, trial, most, replaced)

    def try_out(self, grammar: Grammar) -> None:
        """Raises RequestError where the grammar is wrong or takes too much, QueueTimeoutError where the
        machine has no time for it, ProcessDeadError where process after process is lost, MachineError where
        there will be none."""
        try:
            wrong = self.worker.ask_here(framed(msgspec.json.encode(grammar))).decode()
        except OverrunError:
            wrong = self._too_much(grammar)
        except LostError as error:
            raise self._too_late() if error.is_late else _always_lost() from None
        if wrong:
            raise RequestError(wrong)

    def close(self) -> None:
        """End the process; idempotent."""
        self.worker.close()

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
