"""The engine's loop: receive, plan, submit, commit the step before, send. New behaviour belongs in what it
calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from firelane.backends.contract import Executor, StepInputs
from firelane.engine.commit import Committer
from firelane.engine.inputs import InputWriter
from firelane.engine.plan import StepPlan
from firelane.engine.requests import make_sequence
from firelane.engine.scheduler import Scheduler
from firelane.engine.table import SequenceTable
from firelane.errors import RequestError
from firelane.kv import KvCache
from firelane.wire.frames import NewRequest, Rejected, StepFrame


class Port(Protocol):
    """Where requests come from and frames go to."""

    def receive(self, core: EngineCore, *, idle: bool) -> None:
        """Hand what has arrived to core.submit and core.abort. Where the engine is idle it may block."""
        ...

    def send(self, frame: StepFrame | Rejected) -> None: ...


@dataclass(frozen=True, slots=True)
class _InFlight:
    plan: StepPlan
    inputs: StepInputs


class EngineCore:
    """One executor and the sequences that share it. Owns neither the executor nor the port."""

    def __init__(self, executor: Executor, port: Port, *, prefix_cache: bool = True) -> None:
        limits = executor.limits
        self._executor = executor
        self._port = port
        self.kv = KvCache(limits.num_blocks, limits.block_size, prefix_cache)
        self.table = SequenceTable(limits.max_num_seqs, self.kv, executor.state)
        self.scheduler = Scheduler(self.table, self.kv, limits)
        self._writer = InputWriter(limits, executor.state)
        self._committer = Committer(self.table, self.kv, self.scheduler, executor.state)
        self._in_flight: _InFlight | None = None
        self._next_step = 1

    @property
    def is_idle(self) -> bool:
        """No sequence lives and no step runs."""
        table = self.table
        return not (table.running or table.waiting or self._in_flight or self._committer.has_news)

    def step(self) -> None:
        """One turn. The step before runs while this one is planned, and is committed while this one runs."""
        self._port.receive(self, idle=self.is_idle)
        plan = self.scheduler.plan(self._next_step)
        inputs = self._writer.fill(plan)
        before = self._in_flight
        outputs = self._executor.wait() if before else None
        if before and self._joined():
            plan = self.scheduler.extend(plan)
            inputs = self._writer.fill(plan)
        self._in_flight = self._submit(plan, inputs)
        if before and outputs:
            self._port.send(self._committer.commit(before.plan, before.inputs, outputs))
        elif self._committer.has_news:
            self._port.send(self._committer.report())

    def submit(self, request: NewRequest) -> None:
        """Queue a request, or send its Rejected frame."""
        try:
            if self.table.get(request.id) is not None:
                raise RequestError(f"request id {request.id} is in use")
            sequence = make_sequence(request, self._executor.limits, self._executor.vocab_size, self.kv)
        except RequestError as error:
            self._port.send(Rejected(request.id, str(error)))
            return
        self.table.add(sequence)
        if sequence.end == sequence.prompt_len == sequence.scored + 1:
            self._committer.end(sequence, "length")

    def abort(self, request_id: int) -> None:
        """End a request now; an unknown id is ignored."""
        sequence = self.table.get(request_id)
        if sequence is not None:
            self._committer.end(sequence, "abort")

    def abort_all(self) -> None:
        for sequence in self.table.live():
            self._committer.end(sequence, "abort")

    def check_integrity(self) -> None:
        """Raise AssertionError unless pool, slots and queues agree."""
        self.table.check_integrity()

    def _joined(self) -> bool:
        """Take what came while the step ran; true where a sequence waits that might join the next one."""
        self._port.receive(self, idle=False)
        return bool(self.table.waiting)

    def _submit(self, plan: StepPlan, inputs: StepInputs) -> _InFlight | None:
        if plan.is_empty:
            return None
        self._writer.install(plan)
        self._executor.submit(inputs)
        self._next_step += 1
        return _InFlight(plan, inputs)
