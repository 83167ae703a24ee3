"""Requests whose grammar is being compiled, and the compiled grammars that are kept."""

from __future__ import annotations

import logging
import pathlib
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from queue import SimpleQueue

from firelane.child_process import Replacements
from firelane.child_process.worker import StartWorker
from firelane.engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from firelane.engine.grammar.limits import STACK_BYTES, GrammarLimits
from firelane.engine.grammar.masks import constrain
from firelane.engine.grammar.source import check_size
from firelane.engine.grammar.trial_process import start_trial
from firelane.engine.grammar.turns import Path, Turns
from firelane.engine.sequences.prerequisites import Prerequisites, Waited
from firelane.engine.sequences.sequence import Sequence
from firelane.errors import (
    FirelaneError,
    MachineError,
    ProcessDeadError,
    QueueFullError,
    QueueTimeoutError,
    RequestError,
)
from firelane.wire.frames import Grammar, NewRequest

log = logging.getLogger(__name__)
PASSING = (QueueTimeoutError, ProcessDeadError)
"""Errors of the machine: the grammar may do better another time."""
AT_ONCE = 2
"""Grammars that are compiled at the same time, each of another client."""
CLIENT = 2
"""Names of a path that make a client: tenant and address."""


def grammar_queue(
    model_dir: pathlib.Path,
    vocab_size: int,
    start: StartWorker = start_trial,
    replaced: Replacements | None = None,
) -> GrammarQueue:
    """The queue of this model. Cheap: nothing is loaded before the first grammar. start: of the processes
    that try grammars out; replaced: notes those that were lost."""
    limits = GrammarLimits()
    return GrammarQueue(GrammarCompiler(model_dir, vocab_size, limits, start, replaced), limits)


@dataclass(eq=False)
class _CompileJob:
    """One text to compile, and who waits for it. path: whose turn it is, as in Turns. deadline_s: when those
    who wait for its turn are told that it is late. stopwatch: of its thread, once that has begun. result: set
    by the thread, when it is done. is_lasting: it would be the same another time."""

    grammar: Grammar
    path: Path
    deadline_s: float
    sequences: list[Sequence] = field(default_factory=list[Sequence])
    result: CompiledGrammar | FirelaneError | None = None
    is_lasting: bool = True
    stopwatch: ThreadStopwatch | None = None

    @property
    def used_s(self) -> float:
        return self.stopwatch.used_s if self.stopwatch else 0.0


class ThreadStopwatch:
    """Time that the calling thread works from now on. Its processor's time, for a machine that is busy with
    other things makes no grammar late; a quarter of the wall's, should it do nothing at all."""

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._begun_s = time.clock_gettime(self._clock), time.monotonic()

    @property
    def used_s(self) -> float:
        """Called by any thread, as long as the first one lives."""
        cpu_s, wall_s = self._begun_s
        return max(time.clock_gettime(self._clock) - cpu_s, (time.monotonic() - wall_s) / 4)


class _Workers:
    """Threads that compile, each one grammar after the other. Started when they are needed."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._jobs: SimpleQueue[_CompileJob | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ending = threading.Lock()
        self._left = self._ended = 0

    def put(self, job: _CompileJob, running: int) -> None:
        """running: jobs with this one."""
        if len(self._threads) < running:
            self._left += 1
            self._threads.append(self._started())
        self._jobs.put(job)

    def close(self) -> None:
        """End the threads when they have done what they do; the last one closes the compiler."""
        while self._ended < len(self._threads):
            self._ended += 1
            self._jobs.put(None)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _started(self) -> threading.Thread:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=self._run, name="grammars", daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
        return thread

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.result = self._compile(job)
        with self._ending:
            self._left -= 1
            if not self._left:
                self._compiler.close()

    def _compile(self, job: _CompileJob) -> CompiledGrammar | FirelaneError:
        job.stopwatch = ThreadStopwatch()
        try:
            return self._compiler.compile(job.grammar)
        except FirelaneError as error:
            job.is_lasting = not isinstance(error, PASSING)
            kind = type(error) if isinstance(error, (*PASSING, MachineError)) else RequestError
            return kind(str(error))  # without the frames that it came through: it may be kept
        except BaseException as error:  # a panic of the library is one; requests must not wait for ever
            job.is_lasting = False
            log.exception("grammar_not_compiled kind=%s bytes=%d", job.grammar.kind, len(job.grammar.text))
            return FirelaneError(
                f"the grammar cannot be compiled: internal error: {type(error).__name__}: {error}"
            )


class GrammarQueue(Prerequisites):
    """Used by the engine's thread alone, which never waits for a compilation. Tenants take turns, in each its
    clients by their addresses, and of an address its connections; of one address one grammar is compiled at a
    time, of two addresses two. So whoever sends many, or costly ones, does not keep the others waiting, and
    where too many wait, some of his are refused.
    """

    def __init__(self, compiler: GrammarCompiler, limits: GrammarLimits) -> None:
        self._limits = limits
        self._workers = _Workers(compiler)
        self._running: list[_CompileJob] = []
        self._backlog: Turns[_CompileJob] = Turns(CLIENT + 1)
        self._refused: list[_CompileJob] = []
        self._jobs: dict[Grammar, _CompileJob] = {}  # running or in the backlog
        self._kept: OrderedDict[Grammar, CompiledGrammar | FirelaneError] = OrderedDict()
        self._waiting: dict[int, tuple[Sequence, _CompileJob]] = {}

    @property
    def is_waiting(self) -> bool:
        """Some request waits for its grammar, or a thread compiles one that nobody waits for any more."""
        return bool(self._waiting) or bool(self._running)

    def add(self, sequence: Sequence, request: NewRequest) -> bool:
        """Add a sequence; returns whether it is ready: without a grammar, or with one that is compiled. The
        text of an embedding is not constrained."""
        if request.grammar is None or sequence.pool is not None:
            return True
        return self.compile(sequence, request.grammar, request.client)

    def compile(self, sequence: Sequence, grammar: Grammar, client: tuple[str, str] = ("", "")) -> bool:
        """Give the sequence its constraint; False where it must wait for it (see `take`). client: as in
        NewRequest. Raises RequestError where the grammar is known to be wrong, or too many wait."""
        found = self._kept.get(grammar)
        if found is not None and not _is_spent(found):
            self._kept.move_to_end(grammar)
            if error := self._give(sequence, found):
                raise error.with_traceback(None)
            return True
        job = self._jobs.get(grammar) or self._new_job(grammar, (sequence.tenant.name, *client))
        job.sequences.append(sequence)
        self._waiting[sequence.id] = sequence, job
        self._feed()
        return False

    def get(self, request_id: int) -> Sequence | None:
        """A request that waits for its grammar."""
        entry = self._waiting.get(request_id)
        return entry and entry[0]

    def waiting(self) -> list[Sequence]:
        return [sequence for sequence, _ in self._waiting.values()]

    def abort(self, sequence: Sequence) -> None:
        _, job = self._waiting.pop(sequence.id)
        job.sequences.remove(sequence)

    def take(self) -> list[Waited]:
        """Sequences whose wait is over, each with its constraint or with what is wrong ("" = nothing). Raises
        MachineError where a thread will never be done: nothing but the end of the process stops it."""
        ready = [Waited(sequence, self._too_many()) for job in self._refused for sequence in job.sequences]
        self._refused = []
        for job in [job for job in self._running if job.result is not None]:
            self._running.remove(job)
            ready += self._done(job)
        if any(job.used_s >= self._limits.stuck_s for job in self._running):
            raise MachineError(
                f"a grammar that was compiled for {self._limits.stuck_s:g} s does not end, and takes memory: "
                "the engine has to be started again"
            )
        for late in [job for job in self._jobs.values() if self._is_late(job)]:
            error = self._too_late(late)
            ready += [Waited(sequence, error) for sequence in late.sequences]
            late.sequences.clear()
        for sequence, _ in ready:
            del self._waiting[sequence.id]
        self._feed()
        return ready

    def close(self) -> None:
        """End the threads when they have done what they do; idempotent."""
        self._workers.close()

    def _is_late(self, job: _CompileJob) -> bool:
        if job in self._running:
            return job.used_s >= self._limits.compile_s
        return time.monotonic() >= job.deadline_s

    def _done(self, job: _CompileJob) -> list[Waited]:
        assert job.result is not None
        if isinstance(job.result, MachineError):
            raise job.result
        del self._jobs[job.grammar]
        if job.is_lasting:
            self._keep(job.grammar, job.result)
        return [Waited(sequence, self._give(sequence, job.result)) for sequence in job.sequences]

    def _new_job(self, grammar: Grammar, path: Path) -> _CompileJob:
        check_size(grammar, self._limits)
        job = self._jobs[grammar] = _CompileJob(grammar, path, time.monotonic() + self._limits.compile_s)
        self._backlog.put(path, job)
        if len(self._jobs) > self._limits.waiting:
            dropped = self._backlog.drop()
            del self._jobs[dropped.grammar]
            if dropped is job:
                raise self._too_many()
            self._refused.append(dropped)
        return job

    def _feed(self) -> None:
        """Give threads that have none their next grammar: one that someone still waits for."""
        while len(self._running) < AT_ONCE:
            job = self._backlog.take({job.path[:CLIENT] for job in self._running})
            if job is None:
                return
            if not job.sequences:
                del self._jobs[job.grammar]
                continue
            self._running.append(job)
            self._workers.put(job, len(self._running))

    def _give(self, sequence: Sequence, result: CompiledGrammar | FirelaneError) -> FirelaneError | None:
        """The error where something is wrong."""
        if isinstance(result, FirelaneError):
            return result
        constrain(sequence, result, self._limits)
        return None

    def _keep(self, grammar: Grammar, result: CompiledGrammar | FirelaneError) -> None:
        self._kept[grammar] = result
        if len(self._kept) > self._limits.cached:
            self._kept.popitem(last=False)

    def _too_many(self) -> QueueFullError:
        return QueueFullError(f"{self._limits.waiting} grammars wait to be compiled: try again later")

    def _too_late(self, job: _CompileJob) -> RequestError:
        message = f"the grammar was not compiled within {self._limits.compile_s:g} s"
        if job in self._running:
            return RequestError(f"{message}: simplify it, or try again")
        return QueueTimeoutError(f"{message}, others were before it: try again")


def _is_spent(result: CompiledGrammar | FirelaneError) -> bool:
    return not isinstance(result, FirelaneError) and result.is_spent
