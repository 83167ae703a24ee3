"""The roles of one model's engines, changed as a RoleController decides."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from firelane.errors import RequestError
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.gateway.engines.roles.role_controller import Measurement, Role, RoleController, Split
from firelane.gateway.engines.roles.role_targets import RoleTargets
from firelane.gateway.engines.roles.roles import change_role
from firelane.telemetry.metrics import Histogram

PERCENT = 90.0
log = logging.getLogger(__name__)


class LatencyMetrics(Protocol):
    """Metrics of a model that its roles are chosen by (ModelMetrics)."""

    @property
    def ttft(self) -> Histogram: ...
    @property
    def itl(self) -> Histogram: ...
    @property
    def tokens(self) -> tuple[float, float]:
        """Tokens of prompts, and of output, so far, in all processes of the server."""
        ...


class NoRoleControl:
    """Roles change by hand alone: the plain twin."""

    def sweep(self, now_s: float) -> None:
        pass


NO_ROLE_CONTROL = NoRoleControl()


class RoleControl:
    """Measures a model's latencies once an interval, and gives one engine at a time another role."""

    def __init__(self, engines: ReplicaSet, metrics: LatencyMetrics, controller: RoleController) -> None:
        self._engines, self._metrics, self._controller = engines, metrics, controller
        self._since_s: float | None = None
        self._before = _Counts(metrics)

    def sweep(self, now_s: float) -> None:
        """Called more often than once an interval. now_s: of the monotonic clock."""
        if self._since_s is None:
            self._since_s, self._before = now_s, _Counts(self._metrics)
        lasted_s = now_s - self._since_s
        if lasted_s < self._controller.rule.interval_s:
            return
        before, self._before, self._since_s = self._before, _Counts(self._metrics), now_s
        by_role = {
            role: [one for one in self._engines.serving if one.load.role == role]
            for role in ("prefill", "decode")
        }
        split = Split(len(by_role["prefill"]), len(by_role["decode"]))
        if min(split) > 0:
            measured = self._before.since(before, lasted_s)
            role = self._controller.decide(measured, split, now_s)
            if role is not None:
                self._change(by_role["decode" if role == "prefill" else "prefill"], role, measured)

    def _change(self, others: list[EngineLink], role: Role, measured: Measurement) -> None:
        link = min(others, key=lambda one: one.load.sequences)
        log.info(
            "role_controlled replica=%s role=%s ttft_p90_ms=%.0f itl_p90_ms=%.1f",
            *(link.name, role, 1000 * measured.ttft_s, 1000 * measured.itl_s),
        )
        try:
            change_role(self._engines, link.name, role)
        except RequestError as error:
            log.warning("role_not_changed replica=%s reason=%r", link.name, str(error))


def role_control(
    targets: RoleTargets | None, engines: ReplicaSet, metrics: LatencyMetrics
) -> RoleControl | NoRoleControl:
    """targets: None = roles change by hand alone."""
    return NO_ROLE_CONTROL if targets is None else RoleControl(engines, metrics, RoleController(targets))


class _Counts:
    """The metrics at one moment."""

    def __init__(self, metrics: LatencyMetrics) -> None:
        self._ttft, self._itl = metrics.ttft, metrics.itl
        self._counts = metrics.ttft.all_counts, metrics.itl.all_counts
        self._tokens = metrics.tokens

    def since(self, before: _Counts, lasted_s: float) -> Measurement:
        ttft, itl = (
            [now - then for now, then in zip(*each, strict=True)]
            for each in zip(self._counts, before._counts, strict=True)
        )
        prompts, outputs = (
            (now - then) / lasted_s for now, then in zip(self._tokens, before._tokens, strict=True)
        )
        ttft_s, itl_s = quantile(self._ttft.bounds, ttft), quantile(self._itl.bounds, itl)
        return Measurement(ttft_s, itl_s, prompts, outputs)


def quantile(bounds: Sequence[float], counts: Sequence[int], percent: float = PERCENT) -> float:
    """A quantile of a histogram of counts by upper bound, the last one without: within a bucket as if all
    were spread over it; 0 of nothing."""
    left, lower = sum(counts) * percent / 100, 0.0
    for upper, count in zip(bounds, counts, strict=False):
        if count and left <= count:
            return lower + (upper - lower) * left / count
        left, lower = left - count, upper
    return lower if sum(counts) else 0.0
