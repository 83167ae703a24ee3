from __future__ import annotations

from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.gateway.requests.metrics import ModelMetrics, ServerMetrics
from firelane.telemetry.metrics import Registry
from firelane.wire.frames import Beat, EngineStats, StepFrame


def test_every_token_of_a_frame_with_counts_is_counted():
    registry = Registry()
    metrics = ModelMetrics(registry, ReplicaSet(), ServerMetrics(registry))
    metrics.on_frame(StepFrame(1, [7, 8], [1, 2, 3, 4], [], [], [], EngineStats(), counts=[3, 1]), 0.0)
    assert metrics.generated.total == 4


def test_engine_counters_outlive_an_engine():
    registry, link = Registry(), EngineLink()
    engines = ReplicaSet([link])
    ModelMetrics(registry, engines, ServerMetrics(registry))
    link.load.stats = EngineStats(steps=5, preemptions=2)
    assert b"firelane:engine_steps_total 5.0" in registry.render()
    link.lose("killed")
    link.load.stats = EngineStats(steps=3)
    page = registry.render()
    assert b"firelane:engine_steps_total 8.0" in page
    assert b"vllm:num_preemptions_total 2.0" in page


def test_children_that_engines_replaced_are_counted_over_their_ends():
    link = EngineLink()
    engines = ReplicaSet([link])
    link.receive(Beat(0.0, replaced={"grammar_trial": 2}, broken={"grammar_helper": "both were killed"}))
    assert engines.figures.children.replaced == {"grammar_trial": 2}
    assert engines.figures.children.broken == {"grammar_helper": "both were killed"}
    link.lose("killed")
    assert engines.figures.children.broken == {}
    link.receive(Beat(0.0, replaced={"grammar_trial": 1, "grammar_helper": 1}))
    assert engines.figures.children.replaced == {"grammar_trial": 3, "grammar_helper": 1}
