"""Roles that a controller changes while requests run: latencies come from the model's metrics, engines are
those that serve."""

from __future__ import annotations

import asyncio

from replica_scene import ANSWER, until
from role_scene import LONG, D, P, play

from firelane.gateway.engines.roles.role_control import NO_ROLE_CONTROL, RoleControl, role_control
from firelane.gateway.engines.roles.role_controller import RoleController, RoleRule
from firelane.gateway.engines.roles.role_targets import RoleTargets
from firelane.telemetry.metrics import Histogram

TARGETS = RoleTargets(ttft_s=0.5, itl_s=0.05)
RULE = RoleRule(interval_s=10.0, measurements=1, dwell_s=0.0)


class Metrics:
    """Latencies as a model's metrics count them."""

    def __init__(self):
        self.ttft, self.itl = (Histogram(name, "", [0.01, 0.1, 1.0, 10.0], {}) for name in ("ttft", "itl"))
        self.tokens = (0.0, 0.0)


def controlled(scene, metrics):
    control = RoleControl(scene.set, metrics, RoleController(TARGETS, RULE))
    control.sweep(0.0)
    metrics.ttft.observe(5.0)  # counts from the second interval on: in the first the roles are new
    control.sweep(10.0)
    return control


def roles_of(scene):
    return [link.load.role for link in scene.links]


def test_the_least_busy_engine_changes_and_streams_go_on():
    async def scenario(scene):
        _, sink = await scene.submit(tokens=LONG)
        scene.engines[0].step()
        await until(lambda: scene.set.figures.handed_over == 1)
        await until(lambda: scene.where()[1:] != [[], []])
        metrics = Metrics()
        control = controlled(scene, metrics)
        assert roles_of(scene) == [P, D, D]
        metrics.ttft.observe(5.0, 20)
        metrics.itl.observe(0.001, 20)
        control.sweep(19.0)
        assert roles_of(scene) == [P, D, D]  # before the interval is over
        control.sweep(20.0)
        idle = 2 if scene.where()[1] else 1
        assert [role == P for role in roles_of(scene)] == [True, idle == 1, idle == 2]
        control.sweep(30.0)
        control.sweep(40.0)
        assert roles_of(scene).count(D) == 1
        await scene.finish(sink)
        assert sink.tokens == ANSWER

    play(scenario, P, D, D)


def test_latencies_of_all_gateway_processes_count():
    async def scenario(scene):
        metrics = Metrics()
        control = controlled(scene, metrics)
        place = len(metrics.ttft.bounds) - 1
        metrics.ttft.others = {str(place): 20.0}
        control.sweep(20.0)
        assert roles_of(scene).count(P) == 2

    play(scenario, P, D, D)


def test_nothing_changes_while_one_kind_is_missing():
    async def scenario(scene):
        metrics = Metrics()
        control = controlled(scene, metrics)
        scene.engines[0].die()
        await until(lambda: len(scene.set.serving) == 2)
        for turn in range(2, 9):
            metrics.ttft.observe(5.0, 20)
            control.sweep(10.0 * turn)
        assert [link.load.role for link in scene.set.serving] == [D, D]
        await asyncio.sleep(0)

    play(scenario, P, D, D)


def test_without_targets_nobody_measures():
    assert role_control(None, None, None) is NO_ROLE_CONTROL
    NO_ROLE_CONTROL.sweep(10.0)
