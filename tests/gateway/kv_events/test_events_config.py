"""`--kv-events-config` takes vLLM's fields, and refuses others."""

from __future__ import annotations

import pytest

from firelane.cli import build_parser
from firelane.engine_config import EngineConfig
from firelane.env import Environment
from firelane.errors import UsageError
from firelane.gateway.kv_events import config as module
from firelane.gateway.kv_events.config import KvEventsConfig, offset_port
from firelane.server.options.engine import engine_options
from firelane.server.options.router import with_routers

ON = '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", "topic": "kv"}'


def test_vllms_fields_and_defaults():
    config = KvEventsConfig.parse('{"enable_kv_cache_events": true}')
    assert config == KvEventsConfig(
        enable_kv_cache_events=True,
        publisher=None,
        endpoint="tcp://*:5557",
        replay_endpoint=None,
        buffer_steps=10_000,
        hwm=100_000,
        max_queue_size=100_000,
        topic="",
    )


@pytest.mark.parametrize("text", ["{}", '{"enable_kv_cache_events": true, "publisher": "null"}'])
def test_without_events(text):
    assert KvEventsConfig.parse(text) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "JSON object"),
        ("[]", "JSON object"),
        ('{"enable_kv_cache_events": "yes"}', "enable_kv_cache_events"),
        ('{"endpint": "tcp://*:1"}', "endpint"),
        ('{"endpoint": "tcp://*"}', "tcp://HOST:PORT"),
        ('{"endpoint": "tcp://*:70000"}', "tcp://HOST:PORT"),
        ('{"replay_endpoint": "http://a:1"}', "replay_endpoint"),
        ('{"publisher": "kafka"}', "publisher"),
        ('{"hwm": 0}', "hwm"),
    ],
)
def test_what_is_refused(text, why):
    with pytest.raises(UsageError, match=why):
        KvEventsConfig.parse(text)


def test_where_pyzmq_is_missing(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"firelane\[kv-events\]"):
        KvEventsConfig.parse(ON)


@pytest.mark.parametrize(
    ("endpoint", "number", "expected"),
    [
        ("tcp://*:5557", 0, "tcp://*:5557"),
        ("tcp://*:5557", 3, "tcp://*:5560"),
        ("tcp://[::]:5557", 1, "tcp://[::]:5558"),
        ("inproc://cache", 2, "inproc://cache_dp2"),
    ],
)
def test_each_engine_has_an_endpoint(endpoint, number, expected):
    assert offset_port(endpoint, number) == expected


@pytest.mark.parametrize(
    ("endpoint", "binds"),
    [("tcp://*:1", True), ("tcp://[::]:1", True), ("ipc:///tmp/a", True), ("tcp://router:5557", False)],
)
def test_a_host_is_connected_to(endpoint, binds):
    assert KvEventsConfig(endpoint=endpoint).binds is binds


def options(tmp_path, *words, models=1, prefix_cache=True):
    arguments = vars(build_parser().parse_args(["serve", "MODEL", "--kv-events-config", ON, *words]))
    engine = EngineConfig(model_dir=tmp_path, cache_dir=tmp_path, prefix_cache=prefix_cache)
    return with_routers(arguments, engine_options(arguments, engine, models), Environment(cache_dir=tmp_path))


def test_engines_tell_only_where_somebody_listens(tmp_path):
    made = options(tmp_path, "--replicas", "2")
    assert made.kv_events == KvEventsConfig.parse(ON)
    assert all(config.cache_events for config in made.configs())
    plain = vars(build_parser().parse_args(["serve", "MODEL"]))
    alone = engine_options(plain, EngineConfig(model_dir=tmp_path, cache_dir=tmp_path), 1)
    assert not with_routers(plain, alone, Environment(cache_dir=tmp_path)).engine.cache_events


@pytest.mark.parametrize(
    ("words", "changes", "given"),
    [
        (["--take-over"], {}, "--take-over"),
        (["--engines", "10.0.0.1"], {}, "--engines"),
        ([], {"models": 2}, "several models"),
        ([], {"prefix_cache": False}, "--no-prefix-cache"),
    ],
)
def test_what_does_not_go_together(tmp_path, words, changes, given):
    with pytest.raises(UsageError, match=given):
        options(tmp_path, *words, **changes)
