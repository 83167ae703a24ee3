"""CudaExecutor: owns the device's memory and one captured graph for each bucket, and replays one per step.

It only sequences: what a step computes is in lowering.py, what it is about in staging.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from firelane.backends.contract import EMBED, SCORE, SlotState, StepInputs, StepLimits, StepOutputs
from firelane.backends.cuda.buckets import Bucket, choose
from firelane.backends.cuda.device import Device, Graph
from firelane.backends.cuda.faults import translated
from firelane.backends.cuda.launch import Work
from firelane.backends.cuda.staging import Stager
from firelane.backends.cuda.step_memory import StepMemory
from firelane.backends.cuda.weights import DeviceWeights
from firelane.program.program import Program

Captured = Callable[[Bucket], None]
"""Told of each bucket when its graph is ready."""


class CudaExecutor:
    """See contract.Executor. `work`: by bucket, the launches of its step."""

    def __init__(
        self,
        *,
        program: Program,
        limits: StepLimits,
        device: Device,
        memory: StepMemory,
        weights: DeviceWeights,
        work: Mapping[Bucket, Sequence[Work]],
        tile_tokens: int,
        captured: Captured = lambda _: None,
    ) -> None:
        self._program, self._limits, self._device = program, limits, device
        self._memory, self._weights = memory, weights
        self._state = memory.state.slots()
        self._logprobs: NDArray[np.int32] = self._state.sampling["logprobs"]
        self._stager = Stager(memory.tables, tile_tokens=tile_tokens)
        self._outputs = [StepOutputs.allocate(limits, program.hidden_width) for _ in range(2)]
        self._turn = 0
        self._rows = 0
        self._has_logprobs = self._has_hidden = False
        self._buckets = tuple(work)
        self._graphs: dict[Bucket, Graph] = {}
        for bucket, launches in work.items():
            with translated(f"capturing the graph of {bucket}"):
                self._graphs[bucket] = device.capture(lambda launches=launches: run(launches))
            captured(bucket)

    @property
    def limits(self) -> StepLimits:
        return self._limits

    @property
    def state(self) -> SlotState:
        return self._state

    @property
    def vocab_size(self) -> int:
        return self._program.vocab_size

    @property
    def hidden_width(self) -> int:
        return self._program.hidden_width

    @property
    def weights_bytes(self) -> int:
        return self._weights.nbytes

    @property
    def kv_bytes(self) -> int:
        return self._memory.kv_bytes

    @property
    def memory(self) -> StepMemory:
        """For tests and benchmarks."""
        return self._memory

    def submit(self, inputs: StepInputs) -> None:
        decode = self._stager.write(inputs)
        bucket = choose(self._buckets, tokens=inputs.num_tokens, decode=decode)
        self._note(inputs)
        with translated(f"running a step of {inputs.num_tokens} tokens"):
            self._graphs[bucket].replay()
            self._device.mark()

    def _note(self, inputs: StepInputs) -> None:
        """What wait() has to hand on."""
        self._rows = rows = inputs.num_rows
        kinds, slots = inputs.row_kind[:rows], inputs.row_slot[:rows]
        self._has_hidden = np.count_nonzero(kinds == EMBED) > 0
        asked = np.count_nonzero(self._logprobs[slots] >= 0) > 0
        self._has_logprobs = asked or np.count_nonzero(kinds == SCORE) > 0

    def wait(self) -> StepOutputs:
        with translated("running a step"):
            self._device.wait()
        outputs, found, rows = self._outputs[self._turn], self._memory.outputs, self._rows
        self._turn ^= 1
        outputs.tokens[:rows] = found.tokens.numpy()[:rows]
        if self._has_logprobs:
            outputs.logprobs[:rows] = found.logprobs.numpy()[:rows]
            outputs.top_ids[:rows] = found.top_ids.numpy()[:rows]
            outputs.top_logprobs[:rows] = found.top_logprobs.numpy()[:rows]
        if self._has_hidden:
            np.copyto(outputs.hidden[:rows], self._memory.hidden.numpy()[:rows])
        return outputs

    def release(self) -> None:
        if self._graphs:
            self._graphs.clear()
            self._device.release()


def run(launches: Sequence[Work]) -> None:
    """Start them in order: while a graph is captured, or in its place."""
    for launch in launches:
        launch.run()
