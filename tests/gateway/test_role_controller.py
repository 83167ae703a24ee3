"""The controller of roles: it comes to rest at a constant load, follows one that changes, and leaves one
engine of each kind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.gateway.engines.roles.role_control import quantile
from firelane.gateway.engines.roles.role_controller import Measurement, RoleController, RoleRule, Split
from firelane.gateway.engines.roles.role_targets import RoleTargets
from firelane.options import OptionError

TARGETS = RoleTargets(ttft_s=0.5, itl_s=0.05)
RULE = RoleRule()


class Pool:
    """Engines whose latencies follow from their numbers alone, under a controller."""

    def __init__(self, prefill, decode, ttft_s, itl_s, loads=lambda _: (1000.0, 100.0)):
        """ttft_s, itl_s: by the number of engines for it. loads: tokens a second, by the interval."""
        self.split, self.ttft_s, self.itl_s, self.loads = Split(prefill, decode), ttft_s, itl_s, loads
        self.controller, self.intervals = RoleController(TARGETS), 0
        self.changes = []

    def run(self, intervals):
        for _ in range(intervals):
            self.intervals += 1
            now_s = self.intervals * RULE.interval_s
            ttft_s, itl_s = self.ttft_s(self.split.prefill), self.itl_s(self.split.decode)
            load = self.loads(self.intervals)
            role = self.controller.decide(Measurement(ttft_s, itl_s, *load), self.split, now_s)
            if role is not None:
                more = 1 if role == "prefill" else -1
                self.split = Split(self.split.prefill + more, self.split.decode - more)
                self.changes.append(now_s)
            assert min(self.split) >= 1
        return self

    @property
    def worst(self):
        return max(self.ttft_s(self.split.prefill) / 0.5, self.itl_s(self.split.decode) / 0.05)


def falling(values):
    """A latency by number of engines: fewer is never better."""
    ordered = sorted(values, reverse=True)
    return lambda engines: ordered[engines - 1]


latencies = st.lists(st.floats(0.001, 30.0), min_size=16, max_size=16).map(falling)


@settings(max_examples=60)
@given(
    st.integers(1, 8),
    st.integers(1, 8),
    latencies,
    latencies,
    st.lists(st.floats(1.0, 1.4), min_size=1, max_size=20),
)
def test_it_comes_to_rest_at_a_constant_load(prefill, decode, ttft_s, itl_s, noise):
    """Any latencies of the splits; noise: of the load that is measured."""
    pool = Pool(prefill, decode, ttft_s, itl_s, lambda i: (1000 * noise[i % len(noise)], 100.0))
    before = pool.worst
    pool.run(300)
    rested = len(pool.changes)
    assert rested <= 2 * (prefill + decode)
    assert pool.worst <= max(before / RULE.gain, 1.0)
    pool.run(100)
    assert len(pool.changes) == rested
    assert all(
        later - earlier >= RULE.dwell_s
        for earlier, later in zip(pool.changes, pool.changes[1:], strict=False)
    )


@settings(max_examples=40)
@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 15), st.floats(0.3, 0.95))
def test_it_finds_a_split_that_keeps_to_the_targets(prefill, decode, enough, share):
    """Latencies as those of equally shared work, of which one split keeps to both targets."""
    total = prefill + decode
    enough = min(enough, total - 1)
    pool = Pool(
        prefill,
        decode,
        lambda n: share * TARGETS.ttft_s * enough / n,
        lambda n: share * TARGETS.itl_s * (total - enough) / n,
    )
    pool.run(40 * total)
    assert pool.worst <= 1.0


def test_it_follows_a_load_that_changes_and_changes_back():
    day = [1.0]
    pool = Pool(
        4,
        4,
        lambda n: 2.0 * day[0] / n,
        lambda n: 0.2 / n / day[0],
        lambda _: (1000 * day[0], 100.0),
    )
    assert not pool.run(60).changes
    day[0] = 1.4
    assert pool.run(300).split == Split(5, 3)  # nearest to both: 6 and 2 would keep to one alone
    changed = len(pool.changes)
    assert changed > 0
    day[0] = 0.6
    pool.run(300)
    assert pool.split.decode > 4
    assert len(pool.changes) > changed


def test_a_latency_that_no_engine_makes_better_takes_one_at_most():
    pool = Pool(2, 8, lambda _: 1.0, lambda n: 0.08 / n)
    pool.run(300)
    assert pool.split == Split(3, 7)


def test_targets_that_are_kept_change_nothing():
    pool = Pool(7, 1, lambda _: 0.01, lambda _: 0.0499)
    assert not pool.run(100).changes


def test_a_single_slow_interval_changes_nothing():
    pool = Pool(2, 2, lambda _: 5.0 if pool.intervals % 3 == 0 else 0.1, lambda _: 0.001)
    assert not pool.run(100).changes


def test_a_change_by_hand_begins_anew():
    pool = Pool(2, 3, lambda n: 4.0 / n, lambda _: 0.001)
    pool.run(8)
    assert len(pool.changes) == 1
    pool.split = Split(2, 3)
    began_s = (pool.intervals + 1) * RULE.interval_s
    pool.run(30)
    assert pool.changes[1] - began_s >= RULE.dwell_s


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("ttft=500ms,itl=50ms", (0.5, 0.05)),
        ("itl=0.02s, ttft=2s", (2.0, 0.02)),
    ],
)
def test_targets(text, targets):
    assert RoleTargets.parse(text) == RoleTargets(ttft_s=targets[0], itl_s=targets[1])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ttft=1s",
        "ttft=1s,ttft=2s",
        "ttft=1,itl=2",
        "ttft=0s,itl=1s",
        "ttft=-1s,itl=1s",
        "ttft=nans,itl=1s",
        "ttft=1s,itl=1s,e2e=9s",
        "ttft=infs,itl=1ms",
    ],
)
def test_what_are_no_targets(text):
    with pytest.raises(OptionError, match="as ttft=500ms,itl=50ms"):
        RoleTargets.parse(text)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([0, 0, 0, 0], 0.0),
        ([10, 0, 0, 0], 0.9),
        ([0, 10, 0, 0], 1.9),
        ([5, 5, 0, 0], 1.8),
        ([0, 0, 0, 7], 4.0),
    ],
)
def test_quantile(counts, expected):
    assert quantile([1.0, 2.0, 4.0], counts) == pytest.approx(expected)
