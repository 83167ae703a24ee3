"""The engine's loop: receive, plan, submit, commit the step before, send. New behaviour belongs in what it
calls."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from firelane.backends.contract import Executor, StepInputs, StepOutputs
from firelane.engine.commit import Committer
from firelane.engine.grammar.constraint import Constraints
from firelane.engine.grammar.queue import GrammarQueue
from firelane.engine.inputs import InputWriter
from firelane.engine.plan import StepPlan
from firelane.engine.requests import make_sequence
from firelane.engine.scheduler import Scheduler
from firelane.engine.sequence import Sequence
from firelane.engine.table import SequenceTable
from firelane.errors import RequestError
from firelane.kv import KvCache
from firelane.wire.frames import FinishReason, Grammar, NewRequest, Rejected, StepFrame

COMPILING_WAIT_S = 0.002
NOTHING: Mapping[int, FinishReason] = MappingProxyType({})


class Port(Protocol):
    """Where requests come from and frames go to."""

    def receive(self, core: EngineCore, *, wait_s: float | None) -> None:
        """Hand what has arrived to core.submit and core.abort. Where nothing has, it may wait for `wait_s`
        seconds; None: for as long as it likes."""
        ...

    def send(self, frame: StepFrame | Rejected) -> None: ...


@dataclass(frozen=True, slots=True)
class _InFlight:
    plan: StepPlan
    inputs: StepInputs
    submitted_s: float


class EngineCore:
    """One executor and the sequences that share it. Owns neither the executor nor the port."""

    def __init__(
        self,
        executor: Executor,
        port: Port,
        *,
        prefix_cache: bool = True,
        grammars: GrammarQueue | None = None,
    ) -> None:
        """grammars: None where no request may bring one."""
        limits = executor.limits
        self._executor = executor
        self._port = port
        self.kv = KvCache(limits.num_blocks, limits.block_size, prefix_cache)
        self.table = SequenceTable(limits.max_num_seqs, self.kv, executor.state)
        self.scheduler = Scheduler(self.table, self.kv, limits)
        self._grammars = grammars
        self._constraints = Constraints(self.table, executor.state)
        self._writer = InputWriter(limits, executor.state, self._constraints)
        self._committer = Committer(self.table, self.kv, self.scheduler, executor.state)
        self._in_flight: _InFlight | None = None
        self._next_step = 1

    @property
    def is_idle(self) -> bool:
        """No sequence lives and no step runs."""
        return self._rests and not self._is_compiling

    @property
    def _rests(self) -> bool:
        """There is nothing to do before something arrives, or a grammar is compiled."""
        table = self.table
        return not (table.running or table.waiting or self._in_flight or self._committer.has_news)

    @property
    def _is_compiling(self) -> bool:
        return self._grammars is not None and self._grammars.is_compiling

    def step(self) -> None:
        """One turn. The step before runs while this one is planned, and is committed while this one runs."""
        self._receive(self._wait_s() if self._rests else 0.0)
        plan = self.scheduler.plan(self._next_step)
        inputs = self._writer.fill(plan)
        before = self._in_flight
        outputs = self._wait(before) if before else None
        if before and self._joined():
            plan, planned = self.scheduler.extend(plan), plan
            inputs = self._writer.fill(plan) if plan is not planned else inputs
        by_grammar = NOTHING
        if before and outputs and self._constraints.is_needed:
            by_grammar = self._constraints.advance(before.plan.step, before.inputs, outputs)
        self._in_flight = self._submit(plan, inputs)
        if before and outputs:
            self._port.send(self._committer.commit(before.plan, before.inputs, outputs, by_grammar))
        if self._committer.has_news:
            self._port.send(self._committer.report())

    def submit(self, request: NewRequest) -> None:
        """Queue a request, or send its Rejected frame."""
        try:
            if self._get(request.id) is not None:
                raise RequestError(f"request id {request.id} is in use")
            sequence = make_sequence(request, self._executor.limits, self._executor.vocab_size, self.kv)
            if request.grammar is not None and not self._compiled(sequence, request.grammar):
                return
        except RequestError as error:
            self._port.send(Rejected(request.id, str(error)))
            return
        self._add(sequence)

    def _add(self, sequence: Sequence) -> None:
        self.table.add(sequence)
        if sequence.end == sequence.prompt_len == sequence.scored + 1:
            self._committer.end(sequence, "length")

    def abort(self, request_id: int) -> None:
        """End a request now; an unknown id is ignored."""
        sequence = self._get(request_id)
        if sequence is not None:
            self._abort(sequence)

    def abort_all(self) -> None:
        for sequence in [*self.table.live(), *(self._grammars.waiting() if self._grammars else ())]:
            self._abort(sequence)

    def check_integrity(self) -> None:
        """Raise AssertionError unless pool, slots and queues agree."""
        self.table.check_integrity()

    def _wait_s(self) -> float | None:
        return COMPILING_WAIT_S if self._is_compiling else None

    def _receive(self, wait_s: float | None) -> None:
        self._port.receive(self, wait_s=wait_s)
        if self._grammars is None or not self._grammars.is_compiling:
            return
        for sequence, error in self._grammars.take():
            if error:
                self._port.send(Rejected(sequence.id, error))
            else:
                self._add(sequence)

    def _get(self, request_id: int) -> Sequence | None:
        found = self.table.get(request_id)
        return found or (self._grammars.get(request_id) if self._grammars else None)

    def _compiled(self, sequence: Sequence, grammar: Grammar) -> bool:
        """False where the sequence has to wait for its grammar. Raises RequestError."""
        if sequence.pool is not None:
            return True
        if self._grammars is None:
            raise RequestError("this engine takes no grammars: send the request without one")
        return self._grammars.add(sequence, grammar)

    def _abort(self, sequence: Sequence) -> None:
        if self._grammars is not None and self._grammars.get(sequence.id) is sequence:
            self._grammars.remove(sequence)
            self._committer.note_end(sequence, "abort")
        else:
            self._committer.end(sequence, "abort")

    def _joined(self) -> bool:
        """Take what came while the step ran; true where a sequence waits that might join the next one."""
        self._receive(0.0)
        return bool(self.table.waiting)

    def _wait(self, step: _InFlight) -> StepOutputs:
        outputs = self._executor.wait()
        self.scheduler.pace.note(step.inputs.num_tokens, time.perf_counter() - step.submitted_s)
        return outputs

    def _submit(self, plan: StepPlan, inputs: StepInputs) -> _InFlight | None:
        if plan.is_empty:
            return None
        self._writer.install(plan)
        self._executor.submit(inputs)
        self._next_step += 1
        return _InFlight(plan, inputs, time.perf_counter())
