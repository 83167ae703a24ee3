"""Simulated time, and how long a described device takes for a step of an engine."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

import numpy as np

from firelane.contract import StepInputs
from firelane.parallel.shares import Shares
from firelane.plan.devices import DeviceSpec
from firelane.plan.layout import ParallelLayout
from firelane.plan.model import PlannedModel
from firelane.plan.steps import Clock, make_stages, stage_times
from firelane.program.values import StepShape

CONTEXT_STEP = 512


class Timeline:
    """Events in the order of their time, equal ones in the order in which they were added."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def clock(self) -> float:
        return self.now_s

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(time_s, self.now_s), next(self._order), act))

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._events:
            self.now_s, _, act = heapq.heappop(self._events)
            act()


class DeviceClock:
    """Seconds of steps of a model on one device, by the cost model of `firelane plan`. Context counts in
    parts of CONTEXT_STEP tokens: most steps have been asked for before."""

    def __init__(self, device: DeviceSpec, model: PlannedModel) -> None:
        layout = ParallelLayout()
        shares = Shares(program=model.program, tp=1, ep=1, cut=model.cut)
        self._clock = Clock(device=device, model=model, layout=layout, shares=shares)
        self._stages = make_stages(self._clock)
        self._known: dict[StepShape, float] = {}

    def step_s(self, inputs: StepInputs) -> float:
        shape = shape_of(inputs, CONTEXT_STEP)
        if shape not in self._known:
            self._known[shape] = sum(time.total for time in stage_times(self._stages, self._clock, shape))
        return self._known[shape]


def shape_of(inputs: StepInputs, multiple: int = 1) -> StepShape:
    """The size of a step that is about to run; context and what is attended to as multiples, rounded up."""
    chunks = inputs.num_chunks
    starts = inputs.chunk_start[:chunks].astype(np.int64)
    lengths = inputs.chunk_len[:chunks].astype(np.int64)
    return StepShape(
        tokens=inputs.num_tokens,
        outputs=inputs.num_rows,
        attended=_rounded((lengths * starts + lengths * (lengths + 1) // 2).sum(), multiple),
        context=_rounded((starts + lengths).sum(), multiple),
        sequences=chunks,
    )


def _rounded(tokens: np.int64, multiple: int) -> int:
    return -(-int(tokens) // multiple) * multiple
