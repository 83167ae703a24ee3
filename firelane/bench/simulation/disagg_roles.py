"""A controller of roles over simulated engines, as RoleControl is over those that serve."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from firelane.bench.simulation.disagg_client import SimulatedClient
from firelane.bench.simulation.disagg_clock import Timeline
from firelane.bench.simulation.disagg_engine import SimulatedEngine
from firelane.bench.table import percentile
from firelane.gateway.engines.roles.role_control import PERCENT
from firelane.gateway.engines.roles.role_controller import Measurement, Role, RoleController, Split


class RoleChange(NamedTuple):
    at_s: float
    engine: str
    role: Role


class SimulatedRoles:
    """Changes roles once an interval, while `goes_on` says so. change: gives an engine its role."""

    def __init__(
        self,
        controller: RoleController,
        timeline: Timeline,
        engines: Sequence[SimulatedEngine],
        clients: Sequence[SimulatedClient],
        change: Callable[[SimulatedEngine, Role], None],
        goes_on: Callable[[], bool],
    ) -> None:
        self._controller, self._timeline, self._engines = controller, timeline, engines
        self._clients, self._change, self._goes_on = clients, change, goes_on
        self.changes: list[RoleChange] = []
        self._later()

    def _later(self) -> None:
        self._timeline.at(self._timeline.now_s + self._controller.rule.interval_s, self._tick)

    def _tick(self) -> None:
        now_s = self._timeline.now_s
        by_role = {role: [one for one in self._engines if one.role == role] for role in ("prefill", "decode")}
        split = Split(len(by_role["prefill"]), len(by_role["decode"]))
        since_s = now_s - self._controller.rule.interval_s
        role = self._controller.decide(measured(self._clients, since_s, now_s), split, now_s)
        if role is not None:
            others = by_role["decode" if role == "prefill" else "prefill"]
            engine = min(others, key=lambda one: one.sequences)
            self.changes.append(RoleChange(now_s, engine.name, role))
            self._change(engine, role)
        if self._goes_on():
            self._later()


def measured(clients: Sequence[SimulatedClient], since_s: float, until_s: float) -> Measurement:
    """The measurement of all tokens in that time."""
    ttfts: list[float] = []
    gaps: list[float] = []
    prompts = outputs = 0
    for client in clients:
        first, last = bisect_right(client.times_s, since_s), bisect_right(client.times_s, until_s)
        if first == 0 < last:
            ttfts.append(client.times_s[0] - client.arrived_s)
            prompts += client.prompt_tokens
        outputs += last - first
        gaps += [later - before for before, later in pairwise(client.times_s[max(0, first - 1) : last])]
    ttft_s, itl_s = (percentile(each, PERCENT) if each else 0.0 for each in (ttfts, gaps))
    lasted_s = until_s - since_s
    return Measurement(ttft_s, itl_s, prompts / lasted_s, outputs / lasted_s)
