"""The publisher, to real ZeroMQ subscribers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq

from firelane.engine_config import EngineConfig
from firelane.errors import UsageError
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.kv_events.config import KvEventsConfig
from firelane.gateway.kv_events.feed import NoFeed, PublisherFeed, make_feed
from firelane.gateway.kv_events.publisher import ZmqPublisher
from firelane.server.engine_shares import EngineOptions
from firelane.server.model import Model
from firelane.server.model_spec import lone_model
from firelane.wire.cache_events import BlocksCleared, BlocksRemoved, CacheEvents

SOON_MS = 120_000


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def config(tmp_path: Path) -> KvEventsConfig:
    return KvEventsConfig(
        enable_kv_cache_events=True,
        endpoint=f"ipc://{tmp_path}/events",
        replay_endpoint=f"ipc://{tmp_path}/replay",
        buffer_steps=4,
        topic="kv@pod@model",
    )


@pytest.fixture
def publish(config: KvEventsConfig) -> Iterator[Callable[..., ZmqPublisher]]:
    made: list[ZmqPublisher] = []

    def start(number: int = 0, **changes: Any) -> ZmqPublisher:
        made.append(ZmqPublisher(msgspec.structs.replace(config, **changes), number))
        return made[-1]

    yield start
    for one in made:
        one.close()


@contextmanager
def subscriber(context: zmq.Context[Any], endpoint: str, topic: bytes = b"") -> Iterator[Any]:
    with context.socket(zmq.SUB) as sub:
        sub.set(zmq.RCVTIMEO, SOON_MS)
        sub.subscribe(topic)
        sub.connect(endpoint)
        yield sub


def until_heard(sub: Any, publisher: ZmqPublisher) -> int:
    """The last number so far, once batches reach a new subscriber, whose subscription takes a while."""
    while not sub.poll(10):
        publisher.publish(lambda: b"sign of life")
    last = publisher._next - 1
    while int.from_bytes(sub.recv_multipart()[1], "big") != last:
        pass
    return last


def replayed(context: zmq.Context[Any], endpoint: str, first: int) -> list[tuple[int, bytes]]:
    """Answers to one request."""
    ask = context.socket(zmq.DEALER)
    ask.set(zmq.RCVTIMEO, SOON_MS)
    ask.connect(endpoint)
    ask.send_multipart([b"", first.to_bytes(8, "big")])
    found: list[tuple[int, bytes]] = []
    while True:
        delimiter, number, payload = ask.recv_multipart()
        assert delimiter == b""
        if int.from_bytes(number, "big", signed=True) == -1:
            assert payload == b""
            ask.close()
            return found
        found.append((int.from_bytes(number, "big"), payload))


def until_replayed(
    context: zmq.Context[Any], endpoint: str, is_all: Callable[[list[tuple[int, bytes]]], bool]
) -> list[tuple[int, bytes]]:
    """All answers, once those are there that are still on their way."""
    deadline_s = time.monotonic() + SOON_MS / 1000
    while not is_all(found := replayed(context, endpoint, 0)):
        assert time.monotonic() < deadline_s, found
    return found


def payload(text: str) -> Callable[[], bytes]:
    return lambda: text.encode()


def test_three_frames_topic_number_payload(context, config, publish):
    publisher = publish()
    with subscriber(context, config.endpoint, b"kv@pod") as sub:
        before = until_heard(sub, publisher)
        for text in ("one", "two"):
            publisher.publish(payload(text))
        for number, text in ((before + 1, b"one"), (before + 2, b"two")):
            assert sub.recv_multipart() == [b"kv@pod@model", number.to_bytes(8, "big"), text]


def test_replay_from_a_number_on(context, config, publish):
    publisher = publish()
    for index in range(6):
        publisher.publish(payload(f"batch {index}"))
    kept = [(index, f"batch {index}".encode()) for index in range(2, 6)]
    assert until_replayed(context, config.replay_endpoint, lambda found: found == kept)
    assert replayed(context, config.replay_endpoint, 4) == kept[2:]
    assert replayed(context, config.replay_endpoint, 6) == []


def test_a_request_that_is_none_does_no_harm(context, config, publish):
    publish()
    bad = context.socket(zmq.DEALER)
    bad.connect(config.replay_endpoint)
    for frames in ([b"x"], [b"", b"short"], [b"", b"12345678", b"more"]):
        bad.send_multipart(frames)
    assert replayed(context, config.replay_endpoint, 0) == []
    bad.close()


def test_what_finds_no_room_leaves_a_gap(context, config, publish):
    publisher, holds, goes_on = publish(max_queue_size=2), threading.Event(), threading.Event()

    def slow() -> bytes:
        holds.set()
        assert goes_on.wait(SOON_MS / 1000)
        return b"slow"

    publisher.publish(slow)
    assert holds.wait(SOON_MS / 1000)
    for index in range(1, 5):
        publisher.publish(payload(f"batch {index}"))
    goes_on.set()
    until_replayed(context, config.replay_endpoint, lambda found: len(found) == 3)
    publisher.publish(payload("after"))
    found = until_replayed(context, config.replay_endpoint, lambda found: len(found) == 4)
    assert found == [(0, b"slow"), (1, b"batch 1"), (2, b"batch 2"), (5, b"after")]


def test_a_batch_that_cannot_be_encoded_costs_no_other(context, config, publish):
    publisher = publish()
    publisher.publish(lambda: 1 // 0)  # pyright: ignore[reportArgumentType]
    publisher.publish(payload("next"))
    assert until_replayed(context, config.replay_endpoint, bool) == [(1, b"next")]


def test_all_that_was_handed_in_is_sent_before_the_end(context, config, publish):
    publisher = publish()
    with subscriber(context, config.endpoint) as sub:
        until_heard(sub, publisher)
        publisher.publish(payload("last words"))
        publisher.close()
        assert sub.recv_multipart()[2] == b"last words"


def test_a_port_that_is_taken_is_told(context):
    with context.socket(zmq.PUB) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.bind_to_random_port('tcp://127.0.0.1')}"
        with pytest.raises(UsageError, match=rf"replay_endpoint {endpoint}: another process has it"):
            ZmqPublisher(KvEventsConfig(endpoint="inproc://a", replay_endpoint=endpoint))


def ready(block_size: int = 2) -> Any:
    return SimpleNamespace(block_size=block_size, kv_medium="CPU")


def test_engines_are_published_apart_and_a_new_one_takes_the_place(context, config):
    feed = make_feed(config)
    links = [EngineLink(name=str(number), tell=feed.publish) for number in (0, 1, 0)]
    assert isinstance(feed, PublisherFeed)
    for link in links:
        link.lifecycle.ready = ready()
        feed.expect(link)
    for link, name in zip(links[:2], (10, 11), strict=True):
        link.receive(CacheEvents([BlocksCleared(), BlocksRemoved([name])]))
    links[2].receive(CacheEvents([BlocksCleared()]))
    links[0].receive(CacheEvents([BlocksRemoved([99])]))  # it is on its way out
    links[2].receive(CacheEvents([BlocksRemoved([12])]))
    for number, expected in ((0, [[None, [10]], [None], [[12]]]), (1, [[None, [11]]])):
        endpoint = config.replay_endpoint + (f"_dp{number}" if number else "")
        count = len(expected)
        found = until_replayed(context, endpoint, partial(_has, count))
        batches = [msgspec.msgpack.decode(body) for _, body in found]
        assert [batch[2] for batch in batches] == [number] * count
        assert [[one.get("block_hashes") for one in batch[1]] for batch in batches] == expected
    feed.close()


def _has(count: int, found: list[tuple[int, bytes]]) -> bool:
    return len(found) == count


def test_without_a_listener_nothing_is_made():
    feed, told = make_feed(None), []
    assert isinstance(feed, NoFeed)
    link = EngineLink(tell=lambda link, event: told.append(feed.publish(link, event)))
    feed.expect(link)
    link.receive(CacheEvents([BlocksCleared()]))
    assert told == [None]


def test_the_end_of_a_server_ends_its_publishers(config, tmp_path) -> None:
    engine = EngineConfig(model_dir=tmp_path, cache_dir=tmp_path)
    engines = Model(lone_model(EngineOptions(engine=engine, kv_events=config)), print)
    engines.add("0")
    assert "kv-events-0" in {thread.name for thread in threading.enumerate()}
    engines.close()
    engines.close()
    assert "kv-events-0" not in {thread.name for thread in threading.enumerate()}
