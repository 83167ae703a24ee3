"""Record of the pages that engines have, and of those that they are going to have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from firelane.gateway.engines.routed_engine import RoutedEngine
from firelane.gateway.engines.routing.expected_pages import ExpectedPages
from firelane.wire.page_names import PAGE_TOKENS, PageNames

LEAST_PAGES = 64
MOST_PAGES = 1 << 20
"""Pages that are noted of one engine at most, whatever it tells."""
MOST_MASKS = 4096


class CachedPages(NamedTuple):
    """Engines, by their lives, that have so many leading pages of a prompt, and no more."""

    pages: int
    lives: frozenset[int]


class _Owner:
    """Pages of one life of an engine. told: those that it says it has. expected: of prompts that were sent
    there. tells: it has said what it has. bit: of it in masks."""

    __slots__ = ("bit", "capacity", "expected", "life", "tells", "told")

    def __init__(self, engine: RoutedEngine, bit: int) -> None:
        self.life, self.bit, self.tells = engine.life, bit, False
        self.capacity = min(MOST_PAGES, max(LEAST_PAGES, engine.kv_tokens // PAGE_TOKENS))
        self.told: set[int] = set()
        self.expected = ExpectedPages(self.told)


class PageRecord:
    """Pages by engine. A page has a mask of its owners: one look-up for each page of a prompt finds those of
    all engines. _lives: of the engines in a mask, as masks that many prompts share need not be taken apart
    again each time. _tails: owners that may expect pages behind this one which have no name yet."""

    def __init__(self) -> None:
        self._owners: dict[str, _Owner] = {}
        self._by_bit: dict[int, _Owner] = {}
        self._masks: dict[int, int] = {}
        self._tails: dict[int, int] = {}
        self._lives: dict[int, frozenset[int]] = {}

    def __len__(self) -> int:
        """Pages of all engines together."""
        return sum(len(owner.told) + len(owner.expected) for owner in self._owners.values())

    def cached(self, pages: PageNames) -> list[CachedPages]:
        """Engines that have leading pages of a prompt of these, by their number. An engine that has a page
        is taken to have those before, so that few are looked for, and named."""
        found: list[CachedPages] = []
        owners = self._masks.get(pages[0], 0) if len(pages) else 0
        last, end = 0, len(pages)
        while owners:
            last = self._last(pages, last, owners)
            if last + 1 == end:
                found.append(CachedPages(end, self._lives_of(owners)))
                break
            tails = self._tails.get(pages[last], 0) & owners
            if tails and self._name_along(pages, last, tails):
                continue
            still = self._masks.get(pages[last + 1], 0) & owners
            if still != owners:
                found.append(CachedPages(last + 1, self._lives_of(owners & ~still)))
            owners, last = still, last + 1
        return found

    def _last(self, pages: PageNames, first: int, owners: int) -> int:
        """The last page that all these owners have, `first` among them: steps that double, then halves."""
        get, beyond, step = self._masks.get, len(pages), 1
        while first + step < beyond:
            if get(pages[first + step], 0) & owners != owners:
                beyond = first + step
            else:
                first, step = first + step, 2 * step
        while beyond - first > 1:
            middle = (first + beyond) // 2
            if get(pages[middle], 0) & owners == owners:
                first = middle
            else:
                beyond = middle
        return first

    def _name_along(self, pages: PageNames, index: int, owners: int) -> bool:
        """Name what these owners expect behind a page, as far as it is this prompt's; if any."""
        name, any_new = pages[index], False
        while owners:
            bit = owners & -owners
            owners -= bit
            new = self._by_bit[bit].expected.name_along(name, pages, index)
            self._mark(self._by_bit[bit], new)
            any_new = any_new or bool(new)
        return any_new

    def expect(self, engine: RoutedEngine, pages: PageNames, known: int = 0) -> None:
        """The engine is sent a prompt of these pages, of which the record has the first `known` for it. The
        last page is the first that is forgotten."""
        owner = self._owner(engine)
        expected, first, end = owner.expected, known if owner.tells else 0, min(len(pages), owner.capacity)
        if first >= end:
            return
        if owner.tells and pages[first] not in owner.told and pages[first] not in expected.named:
            self._mark(owner, [expected.add_later(pages, first, end)])
            self._mark(owner, expected.name_oldest())
        else:
            self._mark(owner, expected.add(pages, first, end))
        while len(expected) > owner.capacity:
            name = expected.forget_one()
            if name is not None:
                self._unmark(name, owner.bit)

    def tell(
        self, engine: RoutedEngine, stored: Iterable[int], removed: Iterable[int], *, is_whole: bool = False
    ) -> None:
        """The engine says which pages it has given up, and which it has got since. is_whole: it has no others
        than those stored."""
        if is_whole:
            self.forget(engine.name)
        owner = self._owner(engine)
        owner.tells = True
        self._remove(owner, removed)
        told, expected, masks, bit = owner.told, owner.expected.named, self._masks, owner.bit
        for name in stored:
            if len(told) >= owner.capacity:
                break
            told.add(name)
            masks[name] = masks.get(name, 0) | bit
            if name in expected:
                self._expect_no_more(owner, name)
        self._mark(owner, owner.expected.settle())

    def lost(self, engine: RoutedEngine) -> None:
        """The engine has gone, with its pages."""
        owner = self._owners.get(engine.name)
        if owner is not None and owner.life == engine.life:
            self.forget(engine.name)

    def forget(self, name: str) -> None:
        """All pages of the engine of this name."""
        owner = self._owners.pop(name, None)
        if owner is not None:
            self._lives.clear()
            del self._by_bit[owner.bit]
            for page in (*owner.told, *owner.expected.names):
                self._unmark(page, owner.bit)

    def _owner(self, engine: RoutedEngine) -> _Owner:
        owner = self._owners.get(engine.name)
        if owner is not None and owner.life == engine.life:
            return owner
        self.forget(engine.name)
        bit = 1
        while bit in self._by_bit:
            bit <<= 1
        made = self._owners[engine.name] = self._by_bit[bit] = _Owner(engine, bit)
        return made

    def _lives_of(self, mask: int) -> frozenset[int]:
        lives = self._lives.get(mask)
        if lives is None:
            if len(self._lives) >= MOST_MASKS:
                self._lives.clear()
            lives = frozenset(owner.life for owner in self._owners.values() if owner.bit & mask)
            self._lives[mask] = lives
        return lives

    def _remove(self, owner: _Owner, names: Iterable[int]) -> None:
        """The owner has given the pages up; `settle` is to follow."""
        told, expected, masks, bit = owner.told, owner.expected.named, self._masks, owner.bit
        for name in names:
            if name in expected:
                self._expect_no_more(owner, name)
            elif name not in told:
                continue
            told.discard(name)
            left = masks.pop(name) & ~bit
            if left:
                masks[name] = left

    def _expect_no_more(self, owner: _Owner, name: int) -> None:
        owner.expected.remove(name)
        _take_out(self._tails, name, owner.bit)

    def _mark(self, owner: _Owner, names: list[int]) -> None:
        """Names that the owner's expected pages have got."""
        masks, tails, bit = self._masks, self._tails, owner.bit
        for name in names:
            masks[name] = masks.get(name, 0) | bit
            if owner.expected.goes_on_behind(name):
                tails[name] = tails.get(name, 0) | bit

    def _unmark(self, page: int, bit: int) -> None:
        _take_out(self._masks, page, bit)
        _take_out(self._tails, page, bit)


def _take_out(masks: dict[int, int], page: int, bit: int) -> None:
    left = masks.pop(page, 0) & ~bit
    if left:
        masks[page] = left
