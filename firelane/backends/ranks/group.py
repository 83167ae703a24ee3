"""The executor in front of several ranks: that of the rank that draws tokens, and the word to the others."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from contextlib import AbstractContextManager, ExitStack

from firelane.backends.ranks.leader import Leader
from firelane.contract import (
    NOTHING,
    AdapterMemory,
    Executor,
    GivenBack,
    PageMemory,
    SlotState,
    StepInputs,
    StepLimits,
    StepOutputs,
)
from firelane.errors import KilledError, MachineError

END_S = 5.0
"""Until it is known which rank has ended."""
BLAME_S = 1.0
"""Until a rank that is gone was noticed, when a step has failed."""
log = logging.getLogger(__name__)


class RankGroup:
    """Steps of all ranks (contract.Executor). Ends with MachineError once a rank is gone.

    As many steps are in flight as there are stages, none of which needs a token of another: the token that is
    drawn lies in memory where the ranks read it when the next step of its sequence begins.
    """

    def __init__(self, executor: Executor, leader: Leader, resources: ExitStack) -> None:
        """resources: moved to the group, which ends them, the last one first. Raises MachineError where a
        rank does not get ready: then the caller keeps all."""
        assert leader.limits is not None
        self.limits: StepLimits = leader.limits
        self.max_in_flight = leader.max_in_flight
        self.is_pipelined = leader.max_in_flight > 1
        self.can_sleep = leader.interconnect.can_sleep
        self._executor, self._leader, self._interconnect = executor, leader, leader.interconnect
        self._lost_errors = leader.interconnect.lost_errors
        self._own_in_flight, self._waiting = 0, deque[StepInputs]()
        self._steps, self._sleeps, self._others = 0, False, NOTHING
        self._why, self._is_known = "a link between ranks broke", threading.Event()
        leader.await_ready(self._end)
        self._resources = resources.pop_all()

    @property
    def state(self) -> SlotState:
        return self._executor.state

    @property
    def vocab_size(self) -> int:
        return self._executor.vocab_size

    @property
    def hidden_width(self) -> int:
        return self._executor.hidden_width

    @property
    def features_in(self) -> int:
        return self._executor.features_in

    @property
    def features_out(self) -> int:
        return self._executor.features_out

    @property
    def can_generate(self) -> bool:
        return self._executor.can_generate

    @property
    def arithmetic(self) -> str:
        return self._executor.arithmetic

    @property
    def activation_dtype(self) -> str:
        return self._executor.activation_dtype

    @property
    def weights_bytes(self) -> int:
        """Bytes of all ranks."""
        return self._executor.weights_bytes + self._leader.weights_bytes

    @property
    def kv_bytes(self) -> int:
        return self._executor.kv_bytes + self._leader.kv_bytes

    @property
    def page_memory(self) -> PageMemory | None:
        """None of ranks whose pages this process does not reach."""
        return self._interconnect.page_memory

    @property
    def state_memory(self) -> PageMemory | None:
        return self._interconnect.state_memory

    @property
    def adapters(self) -> AdapterMemory | None:
        return self._executor.adapters

    @property
    def pids(self) -> list[int]:
        """Processes of the ranks of this host, this one first."""
        return [os.getpid(), *(process.pid for process in self._leader.processes)]

    def busy_seconds(self) -> list[float]:
        """Time that each rank of this host has spent in steps so far, without waits for the stage before; []
        where nobody counts it."""
        return self._interconnect.busy_seconds()

    def pinned(self) -> AbstractContextManager[None]:
        """Executors that this thread loads meanwhile compute where the rank of this process does."""
        return self._interconnect.pinned()

    def settle(self) -> None:
        self._executor.settle()

    def submit(self, inputs: StepInputs) -> None:
        self._check()
        try:
            self._leader.hand_out(inputs, self._executor.state)
            self._steps += 1
            self._waiting.append(inputs)
            self._launch()
        except self._lost_errors as error:
            self._blame(error)
            raise

    def _launch(self) -> None:
        """Begin this rank's part of the steps that wait for it, as many as its executor takes."""
        while self._waiting and self._own_in_flight < self._executor.max_in_flight:
            self._executor.submit(self._waiting.popleft())
            self._own_in_flight += 1

    def wait(self) -> StepOutputs:
        try:
            outputs = self._executor.wait()
            self._own_in_flight -= 1
            self._launch()
        except self._lost_errors as error:
            self._blame(error)
            raise
        self._check()
        return outputs

    def standby(self) -> GivenBack:
        if not self._sleeps:
            self._check()
            self._others, self._sleeps = self._leader.rest(self._steps), True
            self._executor.standby()
            self._interconnect.give_back()
        return self._others

    def wake(self) -> None:
        if self._sleeps:
            self._leader.wake()
            self._executor.wake()
            self._sleeps = False

    def release(self) -> None:
        """Ends the ranks; idempotent."""
        self._leader.close()
        self._resources.close()

    def _check(self) -> None:
        if self._is_known.is_set() or self._interconnect.has_ended:
            self._is_known.wait(END_S)
            kind = (
                KilledError if any(process.was_killed for process in self._leader.processes) else MachineError
            )
            raise kind(self._why)

    def _blame(self, error: Exception) -> None:
        """Raises MachineError with the rank that is gone: its loss makes many a thing fail, and what fails
        may be seen before it is. Returns where `error` says it better."""
        self._is_known.wait(BLAME_S)
        self._check()
        if not isinstance(error, MachineError):
            raise MachineError(f"the ranks of the model cannot exchange rows: {error}") from error

    def _end(self, why: str) -> None:
        """Called from a thread that watches a rank: nobody waits for it any longer. The first reason
        counts."""
        if self._is_known.is_set():
            return
        self._why = why
        self._is_known.set()
        log.error("rank_ended error=%r", why)
        self._interconnect.end(why)
