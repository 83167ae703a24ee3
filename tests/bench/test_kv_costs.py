"""benchmarks/kv_costs.py: what it asks, when it looks, and its table."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from pathlib import Path

import pytest

from firelane.cli import build_parser
from firelane.gateway.kv_events.config import KvEventsConfig

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    pytest.importorskip("zmq")
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    return importlib.import_module("kv_costs")


def turn(script, way: str, number: int, *, cpu_s: float, wall_s: float = 1.0):
    return script.Turn(
        case="tiers", way=way, number=number, tokens=1000, wall_s=wall_s, cpu_s=cpu_s, host_s=cpu_s / 8
    )


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_ways_are_options_of_a_server(script, tmp_path):
    for case in script.CASES.values():
        for words in case.ways.values():
            given = vars(
                build_parser().parse_args(
                    ["serve", "MODEL", *(word.format(place=tmp_path, port=5557) for word in words)]
                )
            )
            if "kv_events_config" in given:
                config = KvEventsConfig.parse(given["kv_events_config"])
                assert config is not None
                assert not config.binds  # the subscriber is there first
                assert config.endpoint == "tcp://127.0.0.1:5557"
            assert given.get("kv_disk") in (None, tmp_path)


def test_all_servers_of_a_round_get_the_same_and_each_round_something_else(script):
    load = script.CASES["events"].load
    first = script.prompts_of("events", 0, load)
    assert first == script.prompts_of("events", 0, load)
    assert [len(prompt) for prompt in first] == [load.prompt] * load.clients
    later = script.prompts_of("events", 1, load)
    assert len({tuple(prompt[:16]) for prompt in (*first, *later)}) == 2 * load.clients
    assert max(token for prompt in first for token in prompt) < script.CONFIG["vocab_size"]


def test_each_round_begins_with_another_server(script):
    ways = list(script.CASES["tiers"].ways)
    orders = [script.rotated(ways, number) for number in range(len(ways))]
    assert [order[0] for order in orders] == ways
    assert all(sorted(order) == sorted(ways) for order in orders)


def test_work_behind_the_answers_counts(script):
    looks, slept = iter([1.0, 1.4, 1.6, 1.605]), []
    assert script.cpu_at_rest(lambda: next(looks), slept.append) == 1.605
    assert slept == [script.REST_S] * 3


def test_threads_of_engines_that_compute_are_left_out(script):
    before = {1: {"1": 5.0}, 2: {"2": 1.0, "20": 10.0, "21": 10.0}}
    after = {1: {"1": 5.5, "9": 0.25}, 2: {"2": 1.5, "20": 14.0, "21": 12.0}, 3: {"3": 8.0}}
    assert script.not_computing(before, after, [2]) == 0.5 + 0.25 + 0.5 + 8.0
    assert script.not_computing(before, after, []) == 0.5 + 0.25 + 0.5 + 4.0 + 2.0 + 8.0
    assert script.not_computing(before, {2: {}}, [2]) == 0.0


def test_a_server_that_does_not_rest_is_no_measurement(script):
    times = iter(range(10_000))
    with pytest.raises(SystemExit, match="does not come to rest"):
        script.cpu_at_rest(lambda: float(next(times)), lambda _: None)


def test_ratios_are_of_turns_of_one_round(script):
    plain = [turn(script, "without", n, cpu_s=cpu_s) for n, cpu_s in enumerate((1.0, 2.0, 4.0))]
    host = [turn(script, "host", n, cpu_s=cpu_s, wall_s=1.25) for n, cpu_s in enumerate((1.25, 2.25, 4.25))]
    lines = script.report([*plain, *host]).splitlines()
    kinds = (script.CPU, script.HOST, script.WALL)
    assert [cells(line)[1:4] for line in lines[2:]] == [
        [way, "3", what] for way in ("without", "host") for what in kinds
    ]
    assert cells(lines[2])[4:] == ["2 ms", "", ""]
    assert cells(lines[5])[4:] == ["2.25 ms", "1.1250 (1.094-1.188; 1.062-1.250)", "+250.0 µs"]
    assert cells(lines[6])[4] == "0.2812 ms"
    assert cells(lines[6])[6] == "+31.2 µs, +1.56% of all"  # of the 2 ms without
    assert cells(lines[7])[4:] == ["800", "0.8000 (0.800-0.800; 0.800-0.800)", "+20.00% lost"]


def test_turns_are_kept_for_a_further_start(script, tmp_path):
    path = tmp_path / "figures.jsonl"
    assert script.read_turns(path) == []
    turns = [turn(script, way, 0, cpu_s=1.0) for way in ("without", "host")]
    script._keep(path, turns)
    script._keep(path, [turn(script, "without", 1, cpu_s=2.0)])
    assert script.read_turns(path) == [*turns, turn(script, "without", 1, cpu_s=2.0)]


def test_the_subscriber_counts_batches(script):
    import zmq

    subscriber, ends_s = script.Subscriber(), time.monotonic() + 60
    with contextlib.closing(subscriber), zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.connect(f"tcp://127.0.0.1:{subscriber.port}")
        while not subscriber.count:  # until its subscription is known
            assert time.monotonic() < ends_s
            publisher.send_multipart([b"topic", b"number", b"payload"])
    assert not subscriber._thread.is_alive()
