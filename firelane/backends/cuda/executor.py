"""CudaExecutor: replays one bucket's captured graphs for each step, with up to two steps in flight.

It only sequences: what a step computes is in lowering.py, what it is about in staging.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firelane.backends.cuda.device.device import WAIT_LIMIT_S, Device, Fence, Graph
from firelane.backends.cuda.device.faults import translated
from firelane.backends.cuda.device.launch import Work
from firelane.backends.cuda.device.standby import DeviceStandby
from firelane.backends.cuda.device_pages import CopyGate, DevicePages, device_memories
from firelane.backends.cuda.lowering.buckets import Bucket, choose
from firelane.backends.cuda.lowering.lowering import StepWork
from firelane.backends.cuda.lowering.step_memory import StepMemory
from firelane.backends.cuda.step.staging import Stager
from firelane.backends.cuda.step.tables import MAX_IN_FLIGHT
from firelane.backends.cuda.weights.device_weights import DeviceWeights
from firelane.contract import (
    EMBED,
    SCORE,
    AdapterMemory,
    GivenBack,
    SlotState,
    StepInputs,
    StepLimits,
    StepOutputs,
)
from firelane.program.program import Program

Captured = Callable[[Bucket], None]
"""Told of each bucket when its graph is ready."""


@dataclass(frozen=True)
class _Graphs:
    """Graphs of one bucket, made of its StepWork: the first launch by parity, and all others as one graph for
    both."""

    prepare: tuple[Graph, ...]
    compute: Graph

    @classmethod
    def capture(cls, step: StepWork, device: Device) -> _Graphs:
        prepare = tuple(device.capture(first.run) for first in step.prepare)
        return cls(prepare, device.capture(lambda: run(step.compute)))


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A step in flight: its end, the set of tables and outputs that it has, and what wait() hands on."""

    end: Fence
    parity: int
    tokens: int
    rows: int
    has_logprobs: bool
    has_hidden: bool


class CudaExecutor:
    """A contract.Executor on an NVIDIA GPU. It owns the step's memory and the weights until release().

    Steps run one after the other on one stream; the device reads each sampled token where the step before
    wrote it, so the next step may be submitted before the host has seen it. A step in flight has one of two
    sets of staged tables and outputs (StepTables.staged), taken by turns.
    """

    def __init__(  # limits: exempt (parts that assembly.py puts together)
        self,
        *,
        program: Program,
        limits: StepLimits,
        device: Device,
        memory: StepMemory,
        weights: DeviceWeights,
        work: Mapping[Bucket, StepWork],
        tile_tokens: int,
        step_limit_s: float = WAIT_LIMIT_S,
        captured: Captured = lambda _: None,
        is_alone: bool = True,
    ) -> None:
        self._limits, self._device, self._memory, self._weights = limits, device, memory, weights
        self._vocab_size, self._hidden_width = program.vocab_size, program.hidden_width
        self._features_in, self._features_out = program.features_in, program.features_out
        self._can_generate = program.can_generate
        self._weights_bytes, self._kv_bytes = weights.nbytes, memory.kv_bytes
        self._state = memory.state.slots()
        self._logprobs: NDArray[np.int32] = self._state.sampling["logprobs"]
        sets = range(MAX_IN_FLIGHT)
        self._stagers = [Stager(memory.tables, tile_tokens=tile_tokens, parity=parity) for parity in sets]
        self._outputs = [
            StepOutputs.allocate(limits, program.hidden_width, program.features_out) for _ in sets
        ]
        self._given_up, self._is_released = "", False
        self._parity = 0
        self._in_flight: deque[_Step] = deque()
        self._step_limit_s = step_limit_s
        self._work, self._buckets = work, tuple(work)
        self._graphs: dict[Bucket, _Graphs] = {}
        self._standby = DeviceStandby(device, weights, memory.transient) if is_alone else None
        self._gate = CopyGate()
        self._pages, self._states = device_memories(device, memory, program, limits, self._gate)
        self._capture(captured)

    def _capture(self, captured: Captured = lambda _: None) -> None:
        for bucket, step in self._work.items():
            with translated(f"capturing the graph of {bucket}"):
                self._graphs[bucket] = _Graphs.capture(step, self._device)
            captured(bucket)

    @property
    def limits(self) -> StepLimits:
        return self._limits

    @property
    def state(self) -> SlotState:
        return self._state

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def hidden_width(self) -> int:
        return self._hidden_width

    @property
    def features_in(self) -> int:
        return self._features_in

    @property
    def features_out(self) -> int:
        return self._features_out

    @property
    def can_generate(self) -> bool:
        return self._can_generate

    @property
    def arithmetic(self) -> str:
        return self._device.arithmetic

    @property
    def activation_dtype(self) -> str:
        return "bf16"

    @property
    def weights_bytes(self) -> int:
        return self._weights_bytes

    @property
    def kv_bytes(self) -> int:
        return self._kv_bytes

    @property
    def max_in_flight(self) -> int:
        return MAX_IN_FLIGHT

    @property
    def is_pipelined(self) -> bool:
        return False

    @property
    def memory(self) -> StepMemory:
        """For tests and benchmarks."""
        return self._memory

    @property
    def page_memory(self) -> DevicePages:
        return self._pages

    @property
    def state_memory(self) -> DevicePages | None:
        return self._states

    def settle(self) -> None:
        """Nothing works beside the steps."""

    @property
    def adapters(self) -> AdapterMemory | None:
        return None

    def submit(self, inputs: StepInputs) -> None:
        assert len(self._in_flight) < MAX_IN_FLIGHT, "submit() with as many steps in flight as there may be"
        parity, self._parity = self._parity, self._parity ^ 1
        decode = self._stagers[parity].write(inputs)
        self._memory.features.give(inputs, parity)
        graphs = self._graphs[choose(self._buckets, tokens=inputs.num_tokens, decode=decode)]
        with translated(f"running a step of {inputs.num_tokens} tokens"):
            graphs.prepare[parity].replay()
            graphs.compute.replay()
            end = self._device.mark()
        self._in_flight.append(self._step_of(inputs, parity, end))

    def _step_of(self, inputs: StepInputs, parity: int, end: Fence) -> _Step:
        rows = inputs.num_rows
        kinds, slots = inputs.row_kind[:rows], inputs.row_slot[:rows]
        asked = np.count_nonzero(self._logprobs[slots] >= 0)
        return _Step(
            end=end,
            parity=parity,
            tokens=inputs.num_tokens,
            rows=rows,
            has_logprobs=bool(asked or np.count_nonzero(kinds == SCORE)),
            has_hidden=bool(np.count_nonzero(kinds == EMBED)),
        )

    def wait(self) -> StepOutputs:
        step = self._in_flight.popleft()
        with translated("running a step"):
            step.end.wait(self._step_limit_s, lambda: self._given_up)
        outputs, found = self._outputs[step.parity], self._memory.outputs
        written = step.parity, slice(step.rows)
        outputs.tokens[: step.rows] = found.tokens.numpy()[written]
        if step.has_logprobs:
            outputs.logprobs[: step.rows] = found.logprobs.numpy()[written]
            outputs.top_ids[: step.rows] = found.top_ids.numpy()[written]
            outputs.top_logprobs[: step.rows] = found.top_logprobs.numpy()[written]
        if step.has_hidden:
            np.copyto(outputs.hidden[: step.rows], self._memory.hidden.numpy()[written])
        self._memory.features.take(outputs, step.parity, step.tokens)
        return outputs

    def give_up(self, why: str) -> None:
        """Let wait() end with `why`: what steps in flight wait for will not come. Safe from any thread."""
        self._given_up = why

    @property
    def can_sleep(self) -> bool:
        """False of one of several ranks: they share memory."""
        return self._standby is not None

    def standby(self) -> GivenBack:
        """Give the device's memory back; a copy of the weights stays in host memory. Raises OutOfMemoryError
        where that has no room."""
        assert self._standby is not None, "a rank does not sleep"
        assert not self._in_flight, "standby with a step in flight"
        self._standby.copy()
        self._gate.close()
        self._graphs.clear()
        return GivenBack(released_bytes=self._standby.leave())

    def wake(self) -> None:
        assert self._standby is not None, "a rank does not sleep"
        self._standby.come_back()
        if not self._graphs:
            for staged in self._memory.tables.staged:
                staged.counts.zero_()  # capturing runs a step: one without tokens
            self._capture()
        self._gate.open()

    def release(self) -> None:
        """Memory that the device may still write is kept: after a failure the process has to end."""
        if self._is_released:
            return
        self._is_released = True
        idle = self._device.drain()
        self._graphs.clear()
        self._in_flight.clear()
        if idle:
            del self._memory, self._weights, self._stagers, self._state, self._logprobs, self._standby
            del self._work, self._pages, self._states
            self._device.trim()


def run(launches: Iterable[Work]) -> None:
    """Start them in order: while a graph is captured, or in its place."""
    for launch in launches:
        launch.run()
