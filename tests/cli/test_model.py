"""The engines of one model as its node sees them: all come and go together."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from firelane.cluster.config import RemoteConfig
from firelane.engine_config import EngineConfig
from firelane.engine_state import LinkState
from firelane.gateway.config import ModelConfig
from firelane.gateway.engines.recovery.recovery import NoRecovery
from firelane.node.policy import ModelPolicy
from firelane.node.remote_peers import RemotePeersConfig
from firelane.server.engine_shares import EngineOptions
from firelane.server.model import Model
from firelane.server.model_spec import ModelSpec
from firelane.wire.cache_events import BlocksCleared, CacheEvents
from firelane.wire.frames import Asleep, Awake, Progress
from tests import ready_frame

ROLES = ("prefill", "decode")
READY = msgspec.structs.replace(ready_frame.READY, states_bytes=3, can_sleep=True)


def spec_of(tmp_path: Path, **changes: Any) -> ModelSpec:
    options = EngineOptions(engine=EngineConfig(model_dir=tmp_path, cache_dir=tmp_path), **changes)
    config = ModelConfig(model_dir=tmp_path, names=("m",))
    return ModelSpec(gateway=config, engines=options, policy=ModelPolicy(pinned=True))


@pytest.fixture
def engines(tmp_path: Path) -> Model:
    """Two, which serve."""
    made = Model(spec_of(tmp_path, replicas=2, prefill=1, decode=1), lambda *_: None)
    for name in ("0", "1"):
        link = made.add(name)
        link._connection = SimpleNamespace(send=lambda _: None, close=lambda: None)  # pyright: ignore
        link.receive(READY)
    return made


def put_to_standby(engines: Model) -> list[Any]:
    assert engines.replicas is not None
    engines.sleep()
    for link in engines.replicas.links:
        assert not engines.are_asleep
        link.receive(Asleep(1, 2, 0.0))
    assert engines.are_asleep
    return engines.replicas.links


def test_the_last_one_that_comes_back_counts(engines: Model) -> None:
    links = put_to_standby(engines)
    assert engines.standby_bytes == 4
    engines.wake()
    links[1].receive(Awake(0.0))
    assert not engines.are_awake
    links[0].receive(Awake(0.0))
    assert engines.are_awake


def test_one_that_nobody_starts_again_is_not_waited_for(engines: Model) -> None:
    assert engines.replicas is not None
    first, second = engines.replicas.links
    first.lose("killed once too often")
    engines.sleep()
    assert not engines.are_asleep
    second.receive(Asleep(1, 2, 0.0))
    assert engines.are_asleep
    engines.wake()
    assert not engines.are_awake
    second.receive(Awake(0.0))
    assert engines.are_awake


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_one_that_dies_on_its_way_back_is_not_waited_for(engines: Model, order) -> None:
    links = put_to_standby(engines)
    engines.wake()
    links[order[0]].receive(Awake(0.0))
    assert not engines.are_awake
    links[order[1]].lose("killed")
    assert engines.are_awake


def test_the_other_one_counts_where_the_first_has_died(engines: Model) -> None:
    links = put_to_standby(engines)
    engines.wake()
    links[0].lose("killed")
    assert not engines.are_awake
    links[1].receive(Awake(0.0))
    assert engines.are_awake


def test_each_event_is_told_once_and_those_of_the_cache_and_of_roles_go_elsewhere(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    made = Model(spec_of(tmp_path), lambda *one: told.append((one[0], type(one[1]).__name__)))
    link = made.add("0")
    link._connection = SimpleNamespace(send=lambda _: None, close=lambda: None)  # pyright: ignore
    told.clear()
    link.receive(Progress("load", 1, 2, "B"))
    link.receive(READY)
    link.receive(CacheEvents([BlocksCleared()]))
    link.lose("killed")
    assert told == [("m", "Progress"), ("m", "Ready"), ("m", "Lost")]
    made.remove(link)
    assert len(told) == 3


def test_memory_is_that_of_all_engines_though_only_one_has_told(engines: Model) -> None:
    assert engines.ready_bytes == 2 * 123
    assert engines.replicas is not None
    engines.replicas.links[0].lose("killed")
    assert engines.ready_bytes == 2 * 123


async def _become(engines: Model, spec: ModelSpec) -> None:
    await engines.become(spec)
    await engines.fleet.stop()


def test_other_engines_have_the_router_and_recovery_of_their_options(engines: Model, tmp_path: Path) -> None:
    import asyncio

    spec = spec_of(tmp_path, replicas=3)
    gateway = dataclasses.replace(spec.gateway, recovery=False, shares_pages=True)
    asyncio.run(_become(engines, dataclasses.replace(spec, gateway=gateway)))
    assert engines.replicas is not None
    assert [link.name for link in engines.replicas.links] == ["0", "1", "2"]
    assert isinstance(engines.replicas._observer.recovery, NoRecovery)
    assert engines.replicas.dispatcher.router.follows_pages
    assert engines.ready_bytes == 0
    assert all(link.state is LinkState.STARTING for link in engines.replicas.links)


@pytest.mark.parametrize(
    ("changes", "is_lone"),
    [
        ({}, True),
        ({"replicas": 2}, False),
        ({"replicas": 2, "prefill": 1, "decode": 1}, False),
        ({"remote": RemoteConfig(addresses=())}, False),
        ({"remote_peers": RemotePeersConfig("127.0.0.1", 1, b"key")}, False),
    ],
)
def test_which_engines_know_of_no_other_one(tmp_path: Path, changes: dict[str, Any], is_lone: bool) -> None:
    spec = spec_of(tmp_path, **changes)
    assert spec.has_lone_engine is is_lone
    if is_lone:
        assert len(spec.engine_configs()) == 1
    sharing = replace(spec, gateway=replace(spec.gateway, shares_pages=True))
    assert not sharing.has_lone_engine
