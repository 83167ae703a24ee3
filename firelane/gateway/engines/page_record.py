"""Record of the pages that engines are likely to have: those of the prompts that were sent there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

PAGE_TOKENS = 256
"""Coarser than engines' blocks: less to hash and to remember, and what is missed is less than a page."""
LEAST_PAGES = 64
MOST_MASKS = 4096


class PageOwner(Protocol):
    """An engine, as in Candidate."""

    @property
    def name(self) -> str: ...
    @property
    def kv_tokens(self) -> int: ...
    @property
    def life(self) -> int: ...


def page_names(salt: bytes, prompt: bytes, page_tokens: int = PAGE_TOKENS) -> list[int]:
    """Names of the full pages of a prompt (int32 ids), each for all tokens up to its end. They hold in this
    process alone, and may collide: good enough for an estimate."""
    name, step = hash(salt), 4 * page_tokens
    names: list[int] = []
    for end in range(step, len(prompt) + 1, step):
        name = hash((name, prompt[end - step : end]))
        names.append(name)
    return names


class _Owner:
    """Pages of one life of an engine, the least recently used first. bit: of it in masks."""

    __slots__ = ("bit", "capacity", "life", "pages")

    def __init__(self, engine: PageOwner, bit: int) -> None:
        self.life, self.bit = engine.life, bit
        self.capacity = max(LEAST_PAGES, engine.kv_tokens // PAGE_TOKENS)
        self.pages: OrderedDict[int, None] = OrderedDict()


class PageRecord:
    """Pages by engine. A page has a mask of its owners: one look-up for each page of a prompt finds those of
    all engines. _lives: of the engines in a mask, as masks that many prompts share need not be taken apart
    again each time."""

    def __init__(self) -> None:
        self._owners: dict[str, _Owner] = {}
        self._masks: dict[int, int] = {}
        self._lives: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        """Pages of all engines together."""
        return sum(len(owner.pages) for owner in self._owners.values())

    def cached_tokens(self, names: Sequence[int]) -> dict[int, int]:
        """Leading tokens of the prompt of these pages that engines have, by the engine's life; none of those
        that have no page of it."""
        found: dict[int, int] = {}
        get, before, i = self._masks.get, -1, 0
        for i, name in enumerate(names):
            mask = get(name, 0) & before
            if mask != before:
                if i:
                    found.update(dict.fromkeys(self._lives_of(before & ~mask), i * PAGE_TOKENS))
                if not mask:
                    return found
                before = mask
        if names:
            found.update(dict.fromkeys(self._lives_of(before), (i + 1) * PAGE_TOKENS))
        return found

    def add(self, engine: PageOwner, names: Sequence[int]) -> None:
        """The engine computes a prompt of these pages. The last one is the first that is forgotten."""
        owner = self._owner(engine)
        pages, masks = owner.pages, self._masks
        for name in reversed(names[: owner.capacity]):
            if name in pages:
                pages.move_to_end(name)
            else:
                pages[name] = None
                masks[name] = masks.get(name, 0) | owner.bit
        while len(pages) > owner.capacity:
            self._unmark(pages.popitem(last=False)[0], owner.bit)

    def forget(self, name: str) -> None:
        """All pages of the engine of this name."""
        owner = self._owners.pop(name, None)
        if owner is not None:
            self._lives.clear()
            for page in owner.pages:
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

    def _lives_of(self, mask: int) -> tuple[int, ...]:
        lives = self._lives.get(mask)
        if lives is None:
            if len(self._lives) >= MOST_MASKS:
                self._lives.clear()
            lives = tuple(owner.life for owner in self._owners.values() if owner.bit & mask)
            self._lives[mask] = lives
        return lives

    def _unmark(self, page: int, bit: int) -> None:
        left = self._masks[page] & ~bit
        if left:
            self._masks[page] = left
        else:
            del self._masks[page]
