"""Changes of the engine's prefix cache for Dynamo's KV router."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from firelane.wire.cache_events import BlocksRemoved, BlocksStored, CacheEvent, CacheEvents

Event = dict[str, Any]
"""KvStoredEventInput or KvRemovedEventInput of dynamo._core."""


class Publisher(Protocol):
    """Dynamo's KvEventPublisher."""

    def publish_batch(self, events: list[Event], /) -> None: ...


class CacheRecord:
    """Blocks that the router knows to be here. Those of prompts with a salt are not told: the router would
    need the salt itself. Used by one event loop."""

    def __init__(self) -> None:
        self._publisher: Publisher | None = None
        self._known: set[int] = set()

    def attach(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def on_events(self, frame: CacheEvents) -> None:
        self._tell([told for event in frame.events for told in self._told(event)])

    def clear(self) -> None:
        """The engine has gone, and its cache with it."""
        self._tell(list(self._removed(sorted(self._known))))

    def _tell(self, events: list[Event]) -> None:
        if events and self._publisher is not None:
            self._publisher.publish_batch(events)

    def _told(self, event: CacheEvent) -> Iterator[Event]:
        if isinstance(event, BlocksStored):
            yield from self._stored(event)
        else:
            gone = event.names if isinstance(event, BlocksRemoved) else sorted(self._known)
            yield from self._removed(gone)

    def _stored(self, event: BlocksStored) -> Iterator[Event]:
        if event.salt_id or (event.parent is not None and event.parent not in self._known):
            return
        self._known.update(event.names)
        tokens = array("i", event.tokens).tolist()
        yield {
            "type": "stored",
            "token_ids": tokens,
            "num_block_tokens": [len(tokens) // len(event.names)] * len(event.names),
            "block_hashes": [_signed(name) for name in event.names],
            "parent_hash": None if event.parent is None else _signed(event.parent),
        }

    def _removed(self, names: Sequence[int]) -> Iterator[Event]:
        gone = [name for name in names if name in self._known]
        self._known.difference_update(gone)
        if gone:
            yield {"type": "removed", "block_hashes": [_signed(name) for name in gone]}


def _signed(name: int) -> int:
    """Return a name as a signed number of 64 bits, as Dynamo takes a hash."""
    return name - (1 << 64) if name >= 1 << 63 else name
