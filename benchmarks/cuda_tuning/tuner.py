"""From the rule's config to the fastest near it: step by step, as long as a neighbour is clearly faster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from firelane.backends.cuda.device.launch import Work
from firelane.backends.cuda.device.linear_config import LinearConfig, ProductShape, by_rule

from .candidates import neighbours
from .stopwatch import CudaStopwatch

log = logging.getLogger(__name__)
CLEARLY = 0.98  # of the time before: less is noise
MAX_STEPS = 6

Runs = Callable[[LinearConfig], Sequence[Sequence[Work]]]


@dataclass
class Measured:
    """Measurements of one product: milliseconds by config."""

    shape: ProductShape
    config: LinearConfig
    times_ms: dict[LinearConfig, float] = field(default_factory=dict[LinearConfig, float])

    @property
    def best_ms(self) -> float:
        return self.times_ms[self.config]


def tune(
    shapes: Iterable[ProductShape], problem: Callable[[ProductShape], Runs], stopwatch: CudaStopwatch
) -> dict[ProductShape, Measured]:
    """problem: what runs a product of that shape with a config; it is made for each shape in turn and dropped
    before the next."""
    found: dict[ProductShape, Measured] = {}
    for shape in shapes:
        found[shape] = measured = _climb(shape, problem(shape), stopwatch)
        rule_ms = measured.times_ms[by_rule(shape)]
        log.info("tuned %s: %.4f ms, by rule %.4f ms, %s", shape, measured.best_ms, rule_ms, measured.config)
    return found


def table_of(found: dict[ProductShape, Measured]) -> dict[ProductShape, LinearConfig]:
    """The table that store.write() keeps."""
    return {shape: measured.config for shape, measured in found.items()}


def _climb(shape: ProductShape, runs: Runs, stopwatch: CudaStopwatch) -> Measured:
    measured = Measured(shape=shape, config=by_rule(shape))
    times = measured.times_ms
    times[measured.config] = stopwatch.measure(runs(measured.config))
    for _ in range(MAX_STEPS):
        near = neighbours(measured.config, shape)
        for config in near:
            if config not in times:
                times[config] = stopwatch.measure(runs(config))
        best = min(near, key=times.__getitem__, default=measured.config)
        if times[best] >= CLEARLY * measured.best_ms:
            break
        measured.config = best
    return measured
