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

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firelane.contract import NO_SNAPSHOT
from firelane.kv.incoming import STATES
from firelane.kv.pool import NO_WATCHER, NamedPage, PageWatcher
from firelane.kv.prefix import PrefixChain

DEFAULT_INTERVAL = 4096


class SnapshotPool:
    """Snapshots by number: reference counts, names, and the order in which they are given out again: blank
    ones, then the least recently used. Every operation is O(1)."""

    def __init__(self, count: int, first: int = 0) -> None:
        """first: as in StateSnapshots."""
        self.count, self._first = count, first
        self.watcher: PageWatcher = NO_WATCHER
        self._references = [0] * count
        self._tags = memoryview(bytearray(8 * count)).cast("Q")
        """From 1, once a snapshot has been taken; each changes before the snapshot's content does."""
        self._name_of: list[NamedPage | None] = [None] * count
        self._by_name: dict[bytes, int] = {}
        self._blank: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Snapshots that can be taken now."""
        return len(self._blank) + len(self._cached)

    @property
    def num_named(self) -> int:
        """Snapshots that a prompt could begin with."""
        return len(self._by_name)

    def free(self) -> Iterator[int]:
        """Snapshots that can be taken now, the next one first; valid until the pool changes."""
        yield from self._blank
        yield from self._cached

    def find(self, name: bytes) -> int:
        """The snapshot of this name, or NO_SNAPSHOT."""
        return self._by_name.get(name, NO_SNAPSHOT)

    def take(self, snapshot: int) -> None:
        """For one user that writes to it, its old content forgotten. KeyError where it is not free."""
        if snapshot in self._cached:
            self._forget(snapshot)
        else:
            del self._blank[snapshot]
        self._references[snapshot] = 1
        self._tags[snapshot] += 1

    def share(self, snapshot: int) -> None:
        """One more user of a named snapshot, who reads it."""
        self._cached.pop(snapshot, None)
        self._references[snapshot] += 1
        named = self._name_of[snapshot]
        if named is not None:
            self.watcher.shared([(self._first + snapshot, named)])

    def release(self, snapshot: int) -> None:
        """One user fewer."""
        self._references[snapshot] -= 1
        if not self._references[snapshot]:
            (self._cached if self._name_of[snapshot] else self._blank)[snapshot] = None

    def publish(self, snapshot: int, name: bytes, tenant: bytes = b"") -> bool:
        """Let others find this one by its name. tenant: as in NamedPage. False where another one has the
        name: that one is then the most recently used, and this one stays without."""
        known = self._by_name.setdefault(name, snapshot)
        if known != snapshot:
            if known in self._cached:
                self._cached.move_to_end(known)
            return False
        self._name_of[snapshot] = NamedPage(STATES, name, tenant)
        return True

    def tell(self, name: bytes) -> None:
        """Tell the watcher of the snapshot of this name, if there is one."""
        snapshot = self.find(name)
        named = None if snapshot == NO_SNAPSHOT else self._name_of[snapshot]
        if named is not None:
            self.watcher.published(self._first + snapshot, named)

    def discard(self, name: bytes) -> None:
        """Make the snapshot of this name blank, if there is one and nobody uses it."""
        snapshot = self.find(name)
        if snapshot in self._cached:
            self._forget(snapshot)
            self._blank[snapshot] = None

    def forget(self) -> None:
        """Names of snapshots that nobody uses: their content is gone."""
        for snapshot in list(self._cached):
            self._forget(snapshot)
            self._tags[snapshot] += 1
            self._blank[snapshot] = None

    def keep_tags_in(self, memory: memoryview) -> None:
        """As BlockPool.keep_tags_in."""
        memory[:] = self._tags
        self._tags = memory

    def locate(self, name: bytes) -> tuple[int, int]:
        """The snapshot of this name and its tag, or NO_SNAPSHOT; from any thread, as BlockPool.locate."""
        snapshot = self.find(name)
        if snapshot == NO_SNAPSHOT:
            return NO_SNAPSHOT, 0
        tag = self._tags[snapshot]
        return (snapshot, tag) if self.find(name) == snapshot else (NO_SNAPSHOT, 0)

    def check_integrity(self, held: Iterable[int]) -> None:
        """Raise AssertionError unless every snapshot is in one place, names are one to one, and `held` names
        each user once."""
        expected = [0] * self.count
        for snapshot in held:
            expected[snapshot] += 1
        assert self._references == expected, "snapshot references differ from the sequences: leaked or freed"
        for snapshot in range(self.count):
            places = (snapshot in self._blank, snapshot in self._cached, self._references[snapshot] > 0)
            assert sum(places) == 1, f"snapshot {snapshot}: in {sum(places)} places"
            assert not places[0] or self._name_of[snapshot] is None, f"snapshot {snapshot}: blank but named"
            assert not places[1] or self._name_of[snapshot], f"snapshot {snapshot}: cached without a name"
        named = {named.name: snapshot for snapshot, named in enumerate(self._name_of) if named is not None}
        assert named == self._by_name, "names and snapshots differ"

    def _forget(self, snapshot: int) -> None:
        named = self._name_of[snapshot]
        assert named is not None
        del self._by_name[named.name], self._cached[snapshot]
        self._name_of[snapshot] = None


class IncomingStates:
    """Owner of the snapshots whose content comes from elsewhere, from `begin` to `settle`; by their numbers
    among all states of the executor."""

    def __init__(self, pool: SnapshotPool, first: int) -> None:
        self._pool, self._first = pool, first
        self.is_held_up: Callable[[], bool] = lambda: False
        """As IncomingPages.is_held_up."""
        self._held: set[int] = set()
        self.begun = 0
        """As IncomingPages.begun."""

    @property
    def num_snapshots(self) -> int:
        return len(self._held)

    def snapshots(self) -> Iterator[int]:
        return iter(self._held)

    def begin(self) -> int:
        """A state to write to, for which the least recently used snapshot is given up; NO_SNAPSHOT where all
        are in use, or held up."""
        snapshot = NO_SNAPSHOT if self.is_held_up() else next(self._pool.free(), NO_SNAPSHOT)
        if snapshot == NO_SNAPSHOT:
            return NO_SNAPSHOT
        self._pool.take(snapshot)
        self._held.add(snapshot)
        self.begun += 1
        return self._first + snapshot

    def settle(self, state: int, name: bytes, tenant: bytes) -> None:
        """Nobody writes to it any more. name: of the blocks whose state has come, and was checked; b"" where
        none has. tenant: as in NamedPage."""
        snapshot = state - self._first
        self._held.remove(snapshot)
        if name and self._pool.publish(snapshot, name, tenant):
            self._pool.tell(name)
        self._pool.release(snapshot)


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
        self._pool, self._first = SnapshotPool(count, first), first
        self.incoming = IncomingStates(self._pool, first)
        self._block_size = block_size
        self._interval = -(-rule.interval // block_size) * block_size
        self._at_least = chunk_tokens // 4 if rule.at_least is None else rule.at_least
        self._most_latest = (count + 1) // 2
        self._num_latest = 0

    @property
    def count(self) -> int:
        return self._pool.count

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
        self._pool.watcher = watcher

    def free(self) -> Iterator[int]:
        """Snapshots that can be taken now, the next one first; valid until one is."""
        return self._pool.free()

    def known(self, names: Sequence[bytes], blocks: int) -> NDArray[np.bool_]:
        """By number of leading blocks, up to `blocks`: there is a state for what follows. There always is one
        of no blocks."""
        find = self._pool.find
        return np.array([True, *(find(name) != NO_SNAPSHOT for name in names[:blocks])])

    def find(self, name: bytes) -> int:
        """The snapshot of the blocks that end with this one, or NO_SNAPSHOT."""
        return self._pool.find(name)

    def locate(self, name: bytes) -> tuple[int, int]:
        """The state of these blocks among all of the executor, and its tag; -1 where there is none."""
        snapshot, tag = self._pool.locate(name)
        return (self._first + snapshot, tag) if snapshot != NO_SNAPSHOT else (-1, 0)

    def keep_tags_in(self, memory: memoryview) -> None:
        """Of all states of the executor, as BlockPool.keep_tags_in."""
        self._pool.keep_tags_in(memory[self._first :])

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
        """Of a sequence that begins with this snapshot, or with none, held for it from now on."""
        if snapshot != NO_SNAPSHOT:
            self._pool.share(snapshot)
        return HeldSnapshots(wanted=wanted, read=snapshot)

    def begun(self, held: HeldSnapshots) -> None:
        """The step that reads the snapshot that the sequence begins with has ended."""
        if held.read != NO_SNAPSHOT:
            self._pool.release(held.read)
            held.read = NO_SNAPSHOT

    def take(self, held: HeldSnapshots, save: StateSave) -> None:
        """A step that writes this snapshot is submitted."""
        self._pool.take(save.snapshot)
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
        is_new = self._pool.publish(snapshot, name, chain.tenant)
        self._pool.release(snapshot)
        is_replaced = save.is_latest and bool(save.tokens % self._interval)
        if is_new and not is_replaced:
            self._pool.tell(name)
        if save.is_latest:
            if held.latest is not None:
                self._pool.discard(held.latest)
            held.latest = name if is_new and is_replaced else None

    def release(self, held: HeldSnapshots) -> None:
        """The sequence runs no more. Its latest snapshot stays findable."""
        for snapshot in held.held:
            self._pool.release(snapshot)
        if held.latest is not None:
            self._pool.tell(held.latest)
        self._num_latest -= held.has_latest
        held.read, held.has_latest, held.latest = NO_SNAPSHOT, False, None
        held.saving.clear()

    def forget(self) -> None:
        """As SnapshotPool.forget."""
        self._pool.forget()

    def check_integrity(self, all_held: Iterable[HeldSnapshots]) -> None:
        """Raise AssertionError unless the pool is sound and `all_held` are exactly its users."""
        running = list(all_held)
        held = [snapshot for one in running for snapshot in one.held]
        self._pool.check_integrity([*held, *self.incoming.snapshots()])
        assert self._num_latest == sum(held.has_latest for held in running), "latest snapshots are miscounted"
