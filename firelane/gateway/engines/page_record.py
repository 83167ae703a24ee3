"""Record of the pages that engines have, and of those that they are going to have."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from firelane.wire.page_names import PAGE_TOKENS

LEAST_PAGES = 64
MOST_PAGES = 1 << 20
"""Of one engine, whatever it tells."""
MOST_MASKS = 4096


class PageOwner(Protocol):
    """An engine, as in Candidate."""

    @property
    def name(self) -> str: ...
    @property
    def kv_tokens(self) -> int: ...
    @property
    def life(self) -> int: ...


class CachedPages(NamedTuple):
    """Engines, by their lives, that have so many leading pages of a prompt, and no more."""

    pages: int
    lives: frozenset[int]


class _Owner:
    """Pages of one life of an engine. told: those that it says it has. expected: of prompts that were sent
    there, the least recently used first. tells: it has said what it has. bit: of it in masks."""

    __slots__ = ("bit", "capacity", "expected", "life", "tells", "told")

    def __init__(self, engine: PageOwner, bit: int) -> None:
        self.life, self.bit, self.tells = engine.life, bit, False
        self.capacity = min(MOST_PAGES, max(LEAST_PAGES, engine.kv_tokens // PAGE_TOKENS))
        self.told: set[int] = set()
        self.expected: OrderedDict[int, None] = OrderedDict()


class PageRecord:
    """Pages by engine. A page has a mask of its owners: one look-up for each page of a prompt finds those of
    all engines. _lives: of the engines in a mask, as masks that many prompts share need not be taken apart
    again each time."""

    def __init__(self) -> None:
        self._owners: dict[str, _Owner] = {}
        self._masks: dict[int, int] = {}
        self._lives: dict[int, frozenset[int]] = {}

    def __len__(self) -> int:
        """Pages of all engines together."""
        return sum(len(owner.told) + len(owner.expected) for owner in self._owners.values())

    def cached(self, names: Sequence[int]) -> list[CachedPages]:
        """Engines that have leading pages of a prompt of these, by their number. An engine that has a page
        is taken to have those before, so that few are looked for."""
        found: list[CachedPages] = []
        owners = self._masks.get(names[0], 0) if names else 0
        last = 0
        while owners:
            last = self._last(names, last, owners)
            still = self._masks.get(names[last + 1], 0) & owners if last + 1 < len(names) else 0
            found.append(CachedPages(last + 1, self._lives_of(owners & ~still)))
            owners, last = still, last + 1
        return found

    def _last(self, names: Sequence[int], first: int, owners: int) -> int:
        """The last page that all these owners have, of which `first` is one."""
        get, beyond = self._masks.get, len(names)
        if get(names[-1], 0) & owners == owners:
            return beyond - 1
        while beyond - first > 1:
            middle = (first + beyond) // 2
            if get(names[middle], 0) & owners == owners:
                first = middle
            else:
                beyond = middle
        return first

    def expect(self, engine: PageOwner, names: Sequence[int], known: int = 0) -> None:
        """The engine is sent a prompt of these pages, of which the record has the first `known` for it. The
        last page is the first that is forgotten."""
        owner = self._owner(engine)
        told, expected, masks = owner.told, owner.expected, self._masks
        for name in reversed(names[known if owner.tells else 0 : owner.capacity]):
            if name in expected:
                expected.move_to_end(name)
            elif name not in told:
                expected[name] = None
                masks[name] = masks.get(name, 0) | owner.bit
        while len(expected) > owner.capacity:
            self._unmark(expected.popitem(last=False)[0], owner.bit)

    def tell(
        self, engine: PageOwner, stored: Iterable[int], removed: Iterable[int], *, is_whole: bool = False
    ) -> None:
        """The engine says which pages it has given up, and which it has got since. is_whole: it has no others
        than those stored."""
        if is_whole:
            self.forget(engine.name)
        owner = self._owner(engine)
        owner.tells = True
        for name in removed:
            if name in owner.told or name in owner.expected:
                owner.told.discard(name)
                owner.expected.pop(name, None)
                self._unmark(name, owner.bit)
        for name in stored:
            if len(owner.told) >= owner.capacity:
                break
            owner.expected.pop(name, None)
            owner.told.add(name)
            self._masks[name] = self._masks.get(name, 0) | owner.bit

    def lost(self, engine: PageOwner) -> None:
        """The engine has gone, with its pages."""
        owner = self._owners.get(engine.name)
        if owner is not None and owner.life == engine.life:
            self.forget(engine.name)

    def forget(self, name: str) -> None:
        """All pages of the engine of this name."""
        owner = self._owners.pop(name, None)
        if owner is not None:
            self._lives.clear()
            for page in (*owner.told, *owner.expected):
                self._unmark(page, owner.bit)

    def _owner(self, engine: PageOwner) -> _Owner:
        owner = self._owners.get(engine.name)
        if owner is not None and owner.life == engine.life:
            return owner
        self.forget(engine.name)
        taken, bit = {other.bit for other in self._owners.values()}, 1
        while bit in taken:
            bit <<= 1
        made = self._owners[engine.name] = _Owner(engine, bit)
        return made

    def _lives_of(self, mask: int) -> frozenset[int]:
        lives = self._lives.get(mask)
        if lives is None:
            if len(self._lives) >= MOST_MASKS:
                self._lives.clear()
            lives = frozenset(owner.life for owner in self._owners.values() if owner.bit & mask)
            self._lives[mask] = lives
        return lives

    def _unmark(self, page: int, bit: int) -> None:
        left = self._masks[page] & ~bit
        if left:
            self._masks[page] = left
        else:
            del self._masks[page]
