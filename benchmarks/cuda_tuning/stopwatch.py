"""CudaStopwatch: how long work takes on a device."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import chain

import torch

from firelane.backends.cuda.device.faults import translated
from firelane.backends.cuda.device.launch import Work
from firelane.backends.cuda.lowering.compilation import compile_all
from firelane.errors import CompilerError

NEVER = float("inf")
log = logging.getLogger(__name__)


class CudaStopwatch:
    """On the current CUDA device, in a graph: so starting a launch costs what it costs in a step."""

    def __init__(self, *, rounds: int = 5) -> None:
        self._rounds = rounds

    def measure(self, runs: Sequence[Sequence[Work]]) -> float:
        """Milliseconds of one run, on average, of the best of several rounds of all; NEVER where the
        compiler refuses a kernel, or the device has too little of something for it."""
        try:
            compile_all(chain.from_iterable(runs[:1]), threads=1)
            with translated("starting a candidate"):
                _run(runs[:1])
        except CompilerError as error:
            log.info("left out: %s", error)
            return NEVER
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            _run(runs)
        graph.replay()
        return min(self._replay(graph) for _ in range(self._rounds)) / len(runs)

    @staticmethod
    def _replay(graph: torch.cuda.CUDAGraph) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)


def _run(runs: Sequence[Sequence[Work]]) -> None:
    for works in runs:
        for work in works:
            work.run()
