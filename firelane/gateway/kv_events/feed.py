"""The way of cache events from the links of engines to their publishers."""

from __future__ import annotations

import time
from functools import partial

from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.kv_events.config import KvEventsConfig
from firelane.gateway.kv_events.encoding import BatchEncoder
from firelane.wire.cache_events import BlocksCleared, CacheEvents


class NoFeed:
    """Nobody is told."""

    def expect(self, link: EngineLink) -> None:
        pass

    def publish(self, link: EngineLink, frame: CacheEvents) -> None:
        pass

    def close(self) -> None:
        pass


class PublisherFeed:
    """One publisher for each place of an engine. Made when the first engine has it, so that a port that is
    taken is told at the start. While two engines have one place (a rolling restart), the newer one counts."""

    def __init__(self, config: KvEventsConfig) -> None:
        self._config = config
        self._places: dict[int, _EnginePlace] = {}

    def expect(self, link: EngineLink) -> None:
        """Events are going to come over this link. Its name is the number of the engine's place, which may
        have had another link before. Raises UsageError where its endpoint cannot be used.
        """
        number = int(link.name)
        if number not in self._places:
            self._places[number] = _EnginePlace(self._config, number)

    def publish(self, link: EngineLink, frame: CacheEvents) -> None:
        self._places[int(link.name)].publish(link, frame)

    def close(self) -> None:
        for place in self._places.values():
            place.publisher.close()


class _EnginePlace:
    """source: the link whose engine has said last that it begins with an empty cache."""

    def __init__(self, config: KvEventsConfig, number: int) -> None:
        from firelane.gateway.kv_events.publisher import ZmqPublisher

        self.publisher = ZmqPublisher(config, number)
        self._number = number
        self._source: EngineLink | None = None
        self._encoder = BatchEncoder(block_size=1, medium="CPU", rank=number)

    def publish(self, link: EngineLink, frame: CacheEvents) -> None:
        if link.ready is not None and isinstance(frame.events[0], BlocksCleared):
            ready, self._source = link.ready, link
            self._encoder = BatchEncoder(
                block_size=ready.block_size, medium=ready.kv_medium, rank=self._number
            )
        if link is self._source:
            self.publisher.publish(partial(self._encoder.encode, time.time(), frame.events))


EventFeed = NoFeed | PublisherFeed


def make_feed(config: KvEventsConfig | None) -> EventFeed:
    return NoFeed() if config is None else PublisherFeed(config)
