"""Snapshots of recurrent states: what lets a prompt begin behind a cached prefix where layers keep state.

A snapshot is the state after exactly the tokens of a prefix of whole blocks, and is named as the last of
these blocks is. Life of a snapshot:

    blank -- take --> held, being written -- publish, release --> named -- share --> held, being read
     ^                                                             | ^                     |
     +---- discard, or taken again, the least recently used first -+ +----- release -------+

Running sequences hold a snapshot only from the step that writes, or first reads, it until that step is
committed: all others are cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firelane.contract import NO_SNAPSHOT
from firelane.kv.pool import STATES, UNKNOWN, BlockPool, IncomingPages, NamedPage, PageWatcher
from firelane.kv.prefix import PrefixChain

DEFAULT_INTERVAL = 4096


class _Numbered(PageWatcher):
    """A watcher's view of snapshots: by their numbers among all states of the executor."""

    def __init__(self, watcher: PageWatcher, first: int) -> None:
        self._watcher, self._first = watcher, first

    def published(self, page: int, named: NamedPage) -> None:
        self._watcher.published(self._first + page, named)

    def shared(self, pages: list[tuple[int, NamedPage]]) -> None:
        self._watcher.shared([(self._first + page, named) for page, named in pages])


class StateSave(NamedTuple):
    """A snapshot that a step makes of the state of `slot` after its first `tokens` tokens. is_latest: it
    replaces the sequence's one before of this kind."""

    slot: int
    tokens: int
    snapshot: int
    is_latest: bool


@dataclass(frozen=True, kw_only=True)
class SnapshotRule:
    """interval: a prompt leaves a snapshot at each multiple of so many tokens, rounded up to whole blocks.
    at_least: the tokens that must lie between two snapshots of a prompt, or between the one that it begins
    with and the next, so that they are worth the step that ends there; None: a quarter of what a step can
    compute."""

    interval: int = DEFAULT_INTERVAL
    at_least: int | None = None


@dataclass(slots=True)
class HeldSnapshots:
    """Snapshots of one running sequence. Changed by StateSnapshots alone.

    wanted: lengths at which its prefill leaves one. read: the one that it begins with, until the step that
    reads it is committed. saving: by length, those that steps in flight write. has_latest: it makes some
    while it decodes; latest: the name of the newest of these.
    """

    wanted: tuple[int, ...] = ()
    read: int = NO_SNAPSHOT
    saving: dict[int, int] = field(default_factory=dict[int, int])
    has_latest: bool = False
    latest: bytes | None = None

    @property
    def held(self) -> list[int]:
        """Each as often as it is used."""
        return [*self.saving.values(), *([] if self.read == NO_SNAPSHOT else [self.read])]


class StateSnapshots:
    """The one owner of the snapshots: which are made, which are held by whom, and by what name the others are
    found."""

    def __init__(
        self,
        count: int = 0,
        *,
        block_size: int,
        chunk_tokens: int = 1,
        rule: SnapshotRule | None = None,
        is_kept: bool = True,
        first: int = 0,
    ) -> None:
        """chunk_tokens: the most that a step can compute. is_kept: the program keeps recurrent state, and no
        prompt may begin without one. first: the number of the first snapshot among all states of the
        executor."""
        rule = rule or SnapshotRule()
        self.is_kept = is_kept
        self._pool, self._first = BlockPool(count, (STATES,)), first
        self.incoming = IncomingPages(self._pool, first)
        self._block_size = block_size
        self._interval = -(-rule.interval // block_size) * block_size
        self._at_least = chunk_tokens // 4 if rule.at_least is None else rule.at_least
        self._most_latest = (count + 1) // 2
        self._num_latest = 0

    @property
    def count(self) -> int:
        return self._pool.num_pages

    @property
    def num_free(self) -> int:
        """Snapshots that can be taken now."""
        return self._pool.num_free

    @property
    def num_named(self) -> int:
        """Snapshots that a prompt could begin with."""
        return self._pool.num_named

    @property
    def latest_left(self) -> int:
        """More sequences that may have a latest one: half of the snapshots are for those of prompts."""
        return self._most_latest - self._num_latest

    def watch(self, watcher: PageWatcher) -> None:
        """Tell it from now on of snapshots that are there to stay, as pages of the group STATES: a running
        sequence replaces its latest one, and of those only the last is told."""
        self._pool.watcher = _Numbered(watcher, self._first)

    def free(self) -> Iterator[int]:
        """Snapshots that can be taken now, the next one first; valid until one is."""
        return self._pool.free()

    def known(self, names: Sequence[bytes], blocks: int) -> NDArray[np.bool_]:
        """By number of leading blocks, up to `blocks`: there is a state for what follows. There always is one
        of no blocks."""
        known = self._pool.names(STATES)
        return np.array([True, *(name in known for name in names[:blocks])])

    def find(self, name: bytes) -> int:
        """The snapshot of the blocks that end with this one, or NO_SNAPSHOT."""
        return self._pool.page_of(STATES, name)

    def locate(self, name: bytes) -> tuple[int, int]:
        """The state of these blocks among all of the executor, and its tag; -1 where there is none."""
        snapshot, tag = self._pool.locate(STATES, name)
        return (self._first + snapshot, tag) if snapshot != UNKNOWN else (UNKNOWN, 0)

    def keep_tags_in(self, memory: memoryview) -> None:
        """Keep the tags of all states of the executor in `memory`, as BlockPool.keep_tags_in does."""
        self._pool.keep_tags_in(memory[self._first : self._first + self.count])

    def wanted(self, num_tokens: int, hit_tokens: int, shared_tokens: int) -> tuple[int, ...]:
        """Lengths at which a prefill that begins behind `hit_tokens` tokens is to leave a snapshot: at each
        multiple of the interval, where its pages ceased to be those of an earlier prompt (what two prompts
        share, a third one may), and at the last block boundary that a prompt like this may begin with."""
        if not self.count:
            return ()
        last = (num_tokens - 1) // self._block_size * self._block_size
        regular = range(hit_tokens // self._interval * self._interval, last + 1, self._interval)
        chosen, since = list[int](), hit_tokens
        for tokens in sorted({*regular, shared_tokens, last}):
            if tokens - since >= self._at_least and tokens > hit_tokens:
                chosen.append(tokens)
                since = tokens
        return tuple(chosen)

    def begin(self, snapshot: int, wanted: tuple[int, ...]) -> HeldSnapshots:
        """Snapshots of a sequence that begins with this one, or with none, held for it from now on."""
        if snapshot != NO_SNAPSHOT:
            self._pool.share([snapshot])
        return HeldSnapshots(wanted=wanted, read=snapshot)

    def begun(self, held: HeldSnapshots) -> None:
        """The step that reads the snapshot that the sequence begins with has ended."""
        if held.read != NO_SNAPSHOT:
            self._pool.release([held.read])
            held.read = NO_SNAPSHOT

    def take(self, held: HeldSnapshots, save: StateSave) -> None:
        """A step that writes this snapshot is submitted."""
        self._pool.take_page(save.snapshot)
        held.saving[save.tokens] = save.snapshot
        if save.is_latest and not held.has_latest:
            held.has_latest = True
            self._num_latest += 1

    def publish(
        self, held: HeldSnapshots, save: StateSave, chain: PrefixChain, tokens: NDArray[np.int32]
    ) -> None:
        """The step has ended: let later prompts find the snapshot."""
        blocks, snapshot = save.tokens // self._block_size, held.saving.pop(save.tokens)
        name = chain.names(tokens, blocks)[blocks - 1]
        is_new = self._pool.publish(snapshot, STATES, name, chain.tenant, tells=False)
        if not is_new:
            self._pool.refresh([self._pool.page_of(STATES, name)])
        self._pool.release([snapshot])
        is_replaced = save.is_latest and bool(save.tokens % self._interval)
        if is_new and not is_replaced:
            self._pool.tell(STATES, name)
        if save.is_latest:
            if held.latest is not None:
                self._pool.discard(STATES, held.latest)
            held.latest = name if is_new and is_replaced else None

    def release(self, held: HeldSnapshots) -> None:
        """The sequence runs no more. Its latest snapshot stays findable."""
        self._pool.release(held.held)
        if held.latest is not None:
            self._pool.tell(STATES, held.latest)
        self._num_latest -= held.has_latest
        held.read, held.has_latest, held.latest = NO_SNAPSHOT, False, None
        held.saving.clear()

    def forget(self) -> None:
        """Forget all names, as BlockPool.forget does."""
        self._pool.forget()

    def check_integrity(self, all_held: Iterable[HeldSnapshots]) -> None:
        """Raise AssertionError unless the pool is sound and `all_held` are exactly its users."""
        running = list(all_held)
        self._pool.check_integrity()
        held = Counter(snapshot for one in running for snapshot in one.held) + Counter(self.incoming.pages())
        found = {snapshot: self._pool.references(snapshot) for snapshot in range(self.count)}
        assert +Counter(found) == held, "snapshot references differ from the sequences: leaked or freed"
        assert self._num_latest == sum(held.has_latest for held in running), "latest snapshots are miscounted"
