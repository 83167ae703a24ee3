from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from firelane.telemetry.metrics import Registry


def samples(registry: Registry) -> dict[tuple, float]:
    families = text_string_to_metric_families(registry.render().decode())
    return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}


def test_counter_and_gauge():
    registry = Registry().labelled(m='a "name"')
    counter = registry.counter("x:ends", "Ends.", "why")
    value = [1.5]
    registry.gauge("x:level", "Level.", lambda: value[0])
    counter.add(2, "stop")
    counter.add(1, "length")
    counter.add(1, "stop")
    found = samples(registry)
    assert found["x:ends_total", ("m", 'a "name"'), ("why", "stop")] == 3
    assert found["x:ends_total", ("m", 'a "name"'), ("why", "length")] == 1
    assert found["x:level", ("m", 'a "name"')] == 1.5
    value[0] = 2.5
    assert samples(registry)["x:level", ("m", 'a "name"')] == 2.5


def test_gauges_with_a_label_are_those_that_there_are_now():
    levels = {"0": 1.0, "1": 2.0}
    registry = Registry().labelled(m="a")
    registry.gauges("x:level", "Level.", "replica", lambda: levels)
    assert samples(registry)["x:level", ("m", "a"), ("replica", "1")] == 2
    del levels["1"]
    assert [key[1:] for key in samples(registry) if key[0] == "x:level"] == [(("m", "a"), ("replica", "0"))]


def test_histogram_buckets_are_cumulative_and_bounds_belong_to_them():
    registry = Registry()
    histogram = registry.histogram("x:s", "Seconds.", (1.0, 0.1))
    histogram.observe(0.1, times=3)
    histogram.observe(0.5)
    histogram.observe(7)
    found = samples(registry)
    assert [found["x:s_bucket", ("le", bound)] for bound in ("0.1", "1.0", "+Inf")] == [3, 4, 5]
    assert found["x:s_count",] == 5
    assert found["x:s_sum",] == pytest.approx(7.8)


def test_a_table_counts_combinations():
    registry = Registry()
    table = registry.labelled(m="a").table("x:asked", "Asked.", "path", "status")
    for status in ("2xx", "4xx", "2xx"):
        table.add("/v1", status)
    found = samples(registry)
    assert found["x:asked_total", ("m", "a"), ("path", "/v1"), ("status", "2xx")] == 2
    assert found["x:asked_total", ("m", "a"), ("path", "/v1"), ("status", "4xx")] == 1


def test_facts_are_labels():
    registry = Registry()
    registry.labelled(m="a").facts("x:info", "Info.", ("size",), lambda: [{"size": "16"}])
    assert samples(registry)["x:info", ("m", "a"), ("size", "16")] == 1


def test_names_are_unique():
    registry = Registry()
    registry.counter("x", "X.")
    with pytest.raises(ValueError, match="exists already"):
        registry.counter("x", "X.")


def test_instruments_of_one_name_differ_in_their_labels():
    registry = Registry()
    for model, amount in (("a", 1), ("b", 2)):
        registry.labelled(m=model).counter("x", "X.", "why").add(amount, "stop")
    with pytest.raises(ValueError, match="exists already"):
        registry.labelled(m="a").counter("x", "X.", "why")
    found = samples(registry)
    assert found["x_total", ("m", "a"), ("why", "stop")] == 1
    assert found["x_total", ("m", "b"), ("why", "stop")] == 2


def test_process_metrics_are_there():
    assert any(name == "process_cpu_seconds_total" for name, *_ in samples(Registry()))
