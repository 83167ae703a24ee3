"""When the requests of a load are sent: at a rate or up a ramp of rates, evenly or in bursts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from firelane.errors import UsageError

RampStrategy = Literal["linear", "exponential"]


@dataclass(frozen=True, kw_only=True)
class Ramp:
    """A rate that goes from start_rps to end_rps, in requests a second, over the requests of the load."""

    strategy: RampStrategy
    start_rps: float
    end_rps: float

    def __post_init__(self) -> None:
        if self.start_rps > self.end_rps:
            raise UsageError("--ramp-up-start-rps is above --ramp-up-end-rps: a ramp goes up")

    def rates(self, count: int) -> list[float]:
        """The rate at each request."""
        parts = [i / max(count - 1, 1) for i in range(count)]
        if self.strategy == "linear":
            return [self.start_rps + (self.end_rps - self.start_rps) * part for part in parts]
        return [self.start_rps * (self.end_rps / self.start_rps) ** part for part in parts]


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """request_rate: a second, inf: all at once. burstiness: shape of the gamma distribution of the time
    between two requests: 1 is a Poisson process, less comes in bursts, more comes evenly. ramp: in place of
    the rate.
    """

    request_rate: float = math.inf
    burstiness: float = 1.0
    ramp: Ramp | None = None

    def arrivals_s(self, count: int, *, seed: int) -> list[float] | None:
        """Seconds from the start, None where all are sent at once. At a fixed rate the last one comes at
        count / request_rate, so that the rate is exact for every seed.
        """
        if self.ramp is None and math.isinf(self.request_rate):
            return None
        rates = np.array(self.ramp.rates(count) if self.ramp else [self.request_rate] * count)
        shares = np.random.default_rng(seed).gamma(self.burstiness, 1 / self.burstiness, count)
        times = np.cumsum(shares / rates)
        if self.ramp is None and times[-1] > 0:
            times *= count / self.request_rate / times[-1]
        return times.tolist()
