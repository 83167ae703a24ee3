"""Record of the pages that engines are likely to have: those of the prompts that were sent there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

PAGE_TOKENS = 128
"""Coarser than engines' blocks: less to hash and to remember, and what is missed is less than a page."""
LEAST_PAGES = 64


class PageOwner(Protocol):
    """An engine, as in Candidate."""

    @property
    def name(self) -> str: ...
    @property
    def kv_tokens(self) -> int: ...
    @property
    def life(self) -> object: ...


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
    """Pages of one engine, the least recently used first. bit: of it in the masks of PageRecord."""

    __slots__ = ("bit", "capacity", "life", "name", "pages")

    def __init__(self, engine: PageOwner, bit: int) -> None:
        self.name, self.life, self.bit = engine.name, engine.life, bit
        self.capacity = max(LEAST_PAGES, engine.kv_tokens // PAGE_TOKENS)
        self.pages: OrderedDict[int, None] = OrderedDict()


class PageRecord:
    """Pages by engine. A page has a mask of its owners: one look-up for each page of a prompt finds those of
    all engines."""

    def __init__(self) -> None:
        self._owners: dict[str, _Owner] = {}
        self._by_bit: list[_Owner | None] = []
        self._masks: dict[int, int] = {}

    def __len__(self) -> int:
        """Pages of all engines together."""
        return sum(len(owner.pages) for owner in self._owners.values())

    def is_of(self, engine: PageOwner) -> bool:
        """What is recorded under its name is of its present life."""
        owner = self._owners.get(engine.name)
        return owner is not None and owner.life is engine.life

    def cached_tokens(self, names: Sequence[int]) -> dict[str, int]:
        """Leading tokens of the prompt of these pages that engines have, by engine; none of those that have
        no page of it."""
        found: dict[str, int] = {}
        mask, masks = -1, self._masks
        for i, name in enumerate(names):
            having = masks.get(name, 0) & mask
            if i and having != mask:
                self._note(found, mask & ~having, i)
            mask = having
            if not mask:
                return found
        if names:
            self._note(found, mask, len(names))
        return found

    def _note(self, found: dict[str, int], mask: int, pages: int) -> None:
        while mask:
            owner = self._by_bit[mask.bit_length() - 1]
            assert owner is not None
            found[owner.name] = pages * PAGE_TOKENS
            mask ^= owner.bit

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
            self._by_bit[owner.bit.bit_length() - 1] = None
            for page in owner.pages:
                self._unmark(page, owner.bit)

    def _owner(self, engine: PageOwner) -> _Owner:
        if not self.is_of(engine):
            self.forget(engine.name)
            if None not in self._by_bit:
                self._by_bit.append(None)
            index = self._by_bit.index(None)
            owner = self._by_bit[index] = self._owners[engine.name] = _Owner(engine, 1 << index)
            return owner
        return self._owners[engine.name]

    def _unmark(self, page: int, bit: int) -> None:
        left = self._masks[page] & ~bit
        if left:
            self._masks[page] = left
        else:
            del self._masks[page]
