"""A policy that changes how many engines prefill and how many decode, by the latencies that clients see.

An engine changes sides where the worse of both latencies, each as a share of its target, is likely to become
clearly better by it. What other splits have given at the present load is remembered: at a constant load the
roles come to rest.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal, NamedTuple

from firelane.gateway.engines.roles.role_targets import RoleTargets

Role = Literal["prefill", "decode"]


@dataclass(frozen=True, kw_only=True)
class RoleRule:
    """interval_s: of one measurement. measurements: the last ones that count, all of them with the roles that
    there are. dwell_s: at least between two changes. hope: the share of the worse latency that a change to
    a split that was not tried leaves by estimate; gain: that one that was tried has left, unless it kept to
    both targets. same_load: loads whose ratio is smaller count as one; load_measurements: those that a load
    is the mean of."""

    interval_s: float = 10.0
    measurements: int = 3
    dwell_s: float = 60.0
    hope: float = 0.99
    gain: float = 0.9
    same_load: float = 1.5
    load_measurements: int = 12


class Measurement(NamedTuple):
    """One interval: 90th percentiles, in seconds, 0 where nothing was measured; and tokens a second, of
    prompts and of output."""

    ttft_s: float
    itl_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float


class Split(NamedTuple):
    """Number of engines of each kind."""

    prefill: int
    decode: int


class Pressure(NamedTuple):
    """Latencies as shares of their targets: TTFT, which engines for prefill make better, and ITL."""

    prefill: float
    decode: float


class RoleController:
    """The decisions of one model. It sees all changes of the split, whoever makes them."""

    def __init__(self, targets: RoleTargets, rule: RoleRule | None = None) -> None:
        self.rule = rule or RoleRule()
        self._targets = targets
        self._recent: deque[Pressure] = deque(maxlen=self.rule.measurements)
        self._loads: deque[tuple[float, float]] = deque(maxlen=self.rule.load_measurements)
        self._split, self._since_s = Split(0, 0), 0.0
        self._seen: dict[Split, Pressure] = {}
        self._seen_at = (0.0, 0.0)

    def decide(self, measured: Measurement, split: Split, now_s: float) -> Role | None:
        """The role that one engine of the other role takes now, or None. Called once an interval; split: of
        the engines that serve."""
        if split != self._split:
            self._split, self._since_s = split, now_s
            self._recent.clear()
            self._loads.clear()
            return None
        targets = self._targets
        self._recent.append(Pressure(measured.ttft_s / targets.ttft_s, measured.itl_s / targets.itl_s))
        self._loads.append((measured.prompt_tokens_per_s, measured.output_tokens_per_s))
        if len(self._recent) < self.rule.measurements or now_s - self._since_s < self.rule.dwell_s:
            return None
        return self._judge(split)

    def _judge(self, split: Split) -> Role | None:
        now = Pressure(*(median(each) for each in zip(*self._recent, strict=True)))
        self._remember(split, now)
        if max(now) <= 1:
            return None
        worst_at: dict[Role, float] = {role: self._worst_at(role, split, now) for role in _choices(split)}
        best = min(worst_at, key=lambda role: worst_at[role], default=None)
        return None if best is None or worst_at[best] == math.inf else best

    def _worst_at(self, role: Role, split: Split, now: Pressure) -> float:
        """The worse latency that is likely with one engine more of a role; infinite where it is not worth a
        change."""
        other = _with_more(role, split)
        worst, seen = max(now), self._seen.get(other)
        if seen is not None:
            return max(seen) if max(seen) <= max(self.rule.gain * worst, 1.0) else math.inf
        expected = max(_predicted(now, split, other))
        is_better = expected < self.rule.hope * worst
        return expected if is_better and not self._is_in_vain(split, now, role) else math.inf

    def _is_in_vain(self, split: Split, now: Pressure, role: Role) -> bool:
        """The last engine that took this role has not made its latency better."""
        before = self._seen.get(_with_more("decode" if role == "prefill" else "prefill", split))
        at = 0 if role == "prefill" else 1
        return before is not None and now[at] > self.rule.hope * before[at]

    def _remember(self, split: Split, now: Pressure) -> None:
        """Note of a split's pressure; those of other splits count only as long as the load is the same."""
        load = (fmean(prompts for prompts, _ in self._loads), fmean(outputs for _, outputs in self._loads))
        if not all(map(self._is_same, load, self._seen_at)):
            self._seen.clear()
            self._seen_at = load
        self._seen[split] = now

    def _is_same(self, one: float, other: float) -> bool:
        return max(one, other) <= self.rule.same_load * min(one, other)


def _with_more(role: Role, split: Split) -> Split:
    """One engine more of this role, one fewer of the other."""
    more = 1 if role == "prefill" else -1
    return Split(split.prefill + more, split.decode - more)


def _choices(split: Split) -> list[Role]:
    """Roles that one engine more can take, so that one of each kind is left at least."""
    roles: list[Role] = ["prefill"] if split.decode > 1 else []
    return [*roles, "decode"] if split.prefill > 1 else roles


def _predicted(now: Pressure, split: Split, other: Split) -> Pressure:
    """The pressure to expect, as if latencies were shared by the engines: those of a queue change by more."""
    return Pressure(now.prefill * split.prefill / other.prefill, now.decode * split.decode / other.decode)
