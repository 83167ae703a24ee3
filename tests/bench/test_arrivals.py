"""Arrivals: at the asked rate, in the asked shape, up the asked ramp."""

from __future__ import annotations

import itertools
import statistics

import pytest

from firelane.bench.arrivals import Ramp, Traffic
from firelane.errors import UsageError


def gaps(times: list[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise([0.0, *times])]


def test_without_a_rate_all_come_at_once() -> None:
    assert Traffic().arrivals_s(5, seed=0) is None


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 10.0])
def test_the_rate_is_exact_and_the_shape_a_gamma_distribution(burstiness: float) -> None:
    times = Traffic(request_rate=20.0, burstiness=burstiness).arrivals_s(4000, seed=0)
    assert times is not None
    assert times == sorted(times)
    assert times[-1] == pytest.approx(200.0)
    spread = statistics.pstdev(gaps(times)) * 20.0
    assert spread == pytest.approx(burstiness**-0.5, rel=0.1)


def test_same_seed_same_arrivals() -> None:
    traffic = Traffic(request_rate=2.0)
    assert traffic.arrivals_s(5, seed=3) == traffic.arrivals_s(5, seed=3) != traffic.arrivals_s(5, seed=4)


@pytest.mark.parametrize(("strategy", "middle"), [("linear", 25.5), ("exponential", 50**0.5)])
def test_ramps(strategy, middle) -> None:
    ramp = Ramp(strategy=strategy, start_rps=1.0, end_rps=50.0)
    rates = ramp.rates(101)
    assert (rates[0], rates[-1]) == (1.0, pytest.approx(50.0))
    assert rates[50] == pytest.approx(middle)
    times = Traffic(ramp=ramp, burstiness=1e6).arrivals_s(101, seed=0)
    assert times is not None
    assert gaps(times) == pytest.approx([1 / rate for rate in rates], rel=0.02)


def test_a_ramp_of_one_request_and_one_that_goes_down() -> None:
    assert Ramp(strategy="linear", start_rps=2.0, end_rps=3.0).rates(1) == [2.0]
    with pytest.raises(UsageError, match="a ramp goes up"):
        Ramp(strategy="linear", start_rps=3.0, end_rps=2.0)
