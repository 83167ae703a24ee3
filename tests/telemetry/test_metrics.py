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


def test_levels_have_labels_of_their_own():
    registry = Registry()
    registry.labelled(m="a").levels("x:info", "Info.", ("size",), lambda: [(("16",), 1.0)])
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


def several() -> tuple[Registry, dict[str, object]]:
    """One process's instruments."""
    registry = Registry()
    level = {"a": 1.0}
    return registry, {
        "count": registry.counter("c", "C.", "kind"),
        "table": registry.table("t", "T.", "one", "two"),
        "histogram": registry.histogram("h", "H.", [1.0, 2.0]),
        "level": level,
        "gauge": registry.gauge("g", "G.", lambda: level["a"]),
        "common": registry.gauge("same", "S.", lambda: 7.0, common=True),
        "growing": registry.gauge("grows", "G.", lambda: 2.0, monotonic=True),
    }


def test_figures_of_other_processes_are_added() -> None:
    (one, mine), (two, others) = several(), several()
    for own in (mine, others):
        own["count"].add(2, "x")
        own["table"].add("p", "q")
        own["histogram"].observe(1.5, 3)
    others["count"].add(1, "y")
    for _ in range(2):  # the second time in place of the first
        one.absorb(4, two.dump())
    assert mine["count"].sums == {"x": 4.0, "y": 1.0}
    assert (mine["count"].total, others["count"].total) == (5, 3)
    assert mine["histogram"].all_counts == [0, 6, 0]
    assert mine["histogram"].all_sum == 9.0
    page = one.render().decode()
    for line in ('t_total{one="p",two="q"} 2.0', "g 2.0", "same 7.0", "grows_total 4.0", "h_count 6.0"):
        assert line in page.splitlines()


def test_what_a_process_counted_outlives_it_and_its_levels_do_not() -> None:
    (one, mine), (two, others) = several(), several()
    others["count"].add(2, "x")
    others["histogram"].observe(0.5)
    for process in (1, 2):
        one.absorb(process, two.dump())
        one.end(process)
    assert mine["count"].sums == {"x": 4.0}
    assert mine["histogram"].all_counts == [2, 0, 0]
    assert "g 1.0" in one.render().decode().splitlines()
    assert "grows_total 6.0" in one.render().decode().splitlines()


def test_levels_of_the_server_are_those_of_the_process_that_shows_them() -> None:
    def made(level: float) -> Registry:
        registry = Registry()
        registry.levels("state", "a state", ("model",), lambda: [(("a",), level)])
        return registry

    shown, other = made(2.0), made(5.0)
    shown.absorb(1, other.dump())
    shown.end(1)
    assert b'state{model="a"} 2.0' in shown.render()
