"""Pages: reference counts, names, and the order in which they are given out again. There is one pool of the
pages of the KV cache, and one of the snapshots of recurrent states (states.py). Pages that come from outside.

Each page is in exactly one place:

    blank   nobody uses it, it holds nothing worth keeping       given out first
    cached  nobody uses it, but a later prompt may ask for it    given out last, the least recently used first
    in use  reference count > 0, named or not

A name stands for a block of tokens; with its cache group it tells the content of a page. Each page also has a
tag, which changes before its content does: whoever reads a page from outside compares the tag afterwards.
Every operation is O(1) a page.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import NamedTuple

from firelane.kv.prefix import NameEvents, PageLog

UNKNOWN = -1
"""Instead of a page: no page has this name."""


class NamedPage(NamedTuple):
    """The content of a page: its cache group, its name, and whose it is, as in PrefixChain."""

    group: int
    name: bytes
    tenant: bytes = b""

    @property
    def key(self) -> tuple[int, bytes]:
        """The same whoever wants it."""
        return self.group, self.name


class PageWatcher:
    """Told of pages as they become findable and are found, in the engine's loop: it returns at once. This one
    forgets it."""

    def published(self, page: int, named: NamedPage) -> None:
        pass

    def shared(self, pages: list[tuple[int, NamedPage]]) -> None:
        pass


NO_WATCHER = PageWatcher()


class BlockPool:
    def __init__(self, num_pages: int, groups: Iterable[int] = (0,)) -> None:
        """groups: the cache groups that pages have names in."""
        self.num_pages = num_pages
        self._references = [0] * num_pages
        self._name_of: list[NamedPage | None] = [None] * num_pages
        self._by_name: dict[int, dict[bytes, int]] = {group: {} for group in groups}
        self._blank = array("q", range(num_pages - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._tags = memoryview(bytearray(8 * num_pages)).cast("Q")
        """From 1, once a page has been taken."""
        self.watcher = NO_WATCHER
        self.events = NameEvents()
        self.pages = PageLog()

    @property
    def num_free(self) -> int:
        """Pages that `take` can give out now."""
        return len(self._blank) + len(self._cached)

    @property
    def num_named(self) -> int:
        """Pages that can be found."""
        return sum(map(len, self._by_name.values()))

    def free(self) -> Iterator[int]:
        """Pages that can be taken now, the next one first; valid until the pool changes."""
        yield from reversed(self._blank)
        yield from self._cached

    def take(self) -> int:
        """A page for one user, its old content forgotten. IndexError where none is free: ask `num_free`
        before."""
        if self._blank:
            page = self._blank.pop()
        elif self._cached:
            page, _ = self._cached.popitem(last=False)
            self._forget(page)
        else:
            raise IndexError("no free page")
        self._references[page] = 1
        self._tags[page] += 1
        return page

    def take_page(self, page: int) -> None:
        """Take a page that the caller has chosen from the first ones of `free`: looks for it from there.
        KeyError where it is not free."""
        if page in self._cached:
            del self._cached[page]
            self._forget(page)
        else:
            if self._references[page]:
                raise KeyError(page)
            place = next(i for i in range(len(self._blank) - 1, -1, -1) if self._blank[i] == page)
            del self._blank[place]
        self._references[page] = 1
        self._tags[page] += 1

    def take_many(self, count: int) -> list[int]:
        """So many pages, each as from `take`."""
        if not 0 < count <= len(self._blank):
            return [self.take() for _ in range(count)]
        pages = self._blank[: -count - 1 : -1].tolist()
        del self._blank[-count:]
        for page in pages:
            self._references[page] = 1
            self._tags[page] += 1
        return pages

    def find(self, group: int, names: Sequence[bytes], limit: int) -> list[int]:
        """Pages of the longest known prefix of names[:limit]. They are not yet held: see `share`."""
        by_name, found = self._by_name[group], list[int]()
        for index in range(min(limit, len(names))):
            page = by_name.get(names[index])
            if page is None:
                break
            found.append(page)
        return found

    def find_each(self, group: int, names: Sequence[bytes], limit: int) -> list[int]:
        """The page of each of names[:limit], or UNKNOWN."""
        by_name = self._by_name[group]
        return [by_name.get(name, UNKNOWN) for name in names[:limit]]

    def page_of(self, group: int, name: bytes) -> int:
        """The page of this name, or UNKNOWN."""
        return self._by_name[group].get(name, UNKNOWN)

    def share(self, pages: Sequence[int]) -> None:
        """One more user for each of these named pages."""
        for page in pages:
            if self._references[page] == 0:
                del self._cached[page]
            self._references[page] += 1
        if pages and self.watcher is not NO_WATCHER:
            named = [(page, self._name_of[page]) for page in pages]
            self.watcher.shared([(page, name) for page, name in named if name is not None])

    def refresh(self, pages: Sequence[int]) -> None:
        """Have these named pages given out after all others, the first of them last."""
        for page in reversed(pages):
            if page in self._cached:
                self._cached.move_to_end(page)

    def publish(self, page: int, group: int, name: bytes, tenant: bytes = b"", *, tells: bool = True) -> bool:
        """Let others find this page in use by its name. A second page of the same content stays unnamed: then
        False. tells: the watcher, too; else `tell` does later."""
        by_name = self._by_name[group]
        if name in by_name or self._name_of[page] is not None:
            return False
        by_name[name] = page
        named = self._name_of[page] = NamedPage(group, name, tenant)
        if tells:
            self.watcher.published(page, named)
        self.events.named(group, name)
        return True

    def tell(self, group: int, name: bytes) -> None:
        """Tell the watcher of the page of this name, if there is one."""
        page = self.page_of(group, name)
        named = None if page == UNKNOWN else self._name_of[page]
        if named is not None:
            self.watcher.published(page, named)

    def discard(self, group: int, name: bytes) -> None:
        """Make the page of this name blank, if there is one and nobody uses it."""
        page = self.page_of(group, name)
        if page in self._cached:
            del self._cached[page]
            self._blank_again(page)

    def release(self, pages: Sequence[int]) -> None:
        """One user fewer for each. Later pages become older: a prefix without its tail is still of use."""
        references, names = self._references, self._name_of
        for page in reversed(pages):
            references[page] -= 1
            if not references[page]:
                if names[page] is None:
                    self._blank.append(page)
                else:
                    self._cached[page] = None

    def forget(self) -> None:
        """Names of pages that nobody uses: their content is gone."""
        for page in self._cached:
            self._blank_again(page)
        self._cached.clear()

    def forget_tenant(self, tenant: bytes) -> int:
        """Names of all pages of a tenant, those in use, too; returns how many there were."""
        named = [
            page for page, name in enumerate(self._name_of) if name is not None and name.tenant == tenant
        ]
        for page in named:
            if page in self._cached:
                del self._cached[page]
                self._blank_again(page)
            else:
                self._forget(page)
        return len(named)

    def keep_tags_in(self, memory: memoryview) -> None:
        """From now on tags lie there: num_pages of format Q. Nothing has happened in this pool yet."""
        memory[:] = self._tags
        self._tags = memory

    def locate(self, group: int, name: bytes) -> tuple[int, int]:
        """The page of this name and its tag, or UNKNOWN. Called by any thread: what it says was true at some
        moment of the call."""
        by_name = self._by_name[group]
        page = by_name.get(name, UNKNOWN)
        if page == UNKNOWN:
            return UNKNOWN, 0
        tag = self._tags[page]
        return (page, tag) if by_name.get(name) == page else (UNKNOWN, 0)

    def names(self, group: int) -> Container[bytes]:
        """Names of the pages of this group, as they are at each moment."""
        return self._by_name[group]

    def references(self, page: int) -> int:
        return self._references[page]

    def check_integrity(self) -> None:
        """Raise AssertionError unless every page is in exactly one place and names are one to one."""
        blank, cached = set(self._blank), set(self._cached)
        assert len(blank) == len(self._blank), "a page is blank twice"
        assert not blank & cached, "a page is blank and cached"
        for page in range(self.num_pages):
            free = page in blank or page in cached
            assert self._references[page] >= 0, f"page {page}: negative reference count"
            assert free == (self._references[page] == 0), f"page {page}: free and in use, or lost"
            assert page not in blank or self._name_of[page] is None, f"page {page}: blank but named"
            assert page not in cached or self._name_of[page] is not None, f"page {page}: cached, no name"
        named = {named.key: page for page, named in enumerate(self._name_of) if named is not None}
        known = {
            (group, name): page for group, pages in self._by_name.items() for name, page in pages.items()
        }
        assert named == known, "names and pages differ"

    def _blank_again(self, page: int) -> None:
        """A page that was cached holds nothing from now on."""
        self._forget(page)
        self._tags[page] += 1
        self._blank.append(page)

    def _forget(self, page: int) -> None:
        named = self._name_of[page]
        assert named is not None
        del self._by_name[named.group][named.name]
        self._name_of[page] = None
        self.events.unnamed(named.group, named.name)
        self.pages.unnamed(named.group, named.name)


WantedPage = NamedPage
STATES = -1
"""In place of a cache group: snapshots of recurrent states, by the names of their last blocks."""


class WantedState(NamedTuple):
    """A snapshot of a recurrent state. names: of the prefixes that it may be of, the best one first. place:
    the state to write it to. tenant: as in NamedPage."""

    names: list[bytes]
    place: int
    tenant: bytes = b""


class IncomingPages:
    """Owner of pages, or of snapshots of recurrent states, whose content comes from elsewhere: another
    engine, or a tier.

        free -- begin --> held, being written from outside -- settle --> free, findable by their names
                                                               |
                                                               +-------> blank, where nothing came

    While they are held nobody else is given them, so a copy that comes late overwrites nothing."""

    def __init__(self, pool: BlockPool, first: int = 0) -> None:
        """first: the number of the pool's first page for those who write to it."""
        self._pool, self._first = pool, first
        self.is_held_up: Callable[[], bool] = lambda: False
        """Free pages are still written to by a step in flight: what comes from outside does not wait for
        steps, as the next one does. None is given out meanwhile."""
        self._held: dict[int, WantedPage] = {}
        self.begun = 0
        """Pages so far, which only grows: what was planned with free pages before has to be planned anew."""

    @property
    def num_pages(self) -> int:
        return len(self._held)

    def pages(self) -> Iterator[int]:
        """Their numbers in the pool."""
        return (page - self._first for page in self._held)

    def begin(self, wanted: Sequence[WantedPage], most: int) -> list[int]:
        """Pages for the first of these, at most `most`; a page that is there is given up for them, the least
        recently used first."""
        count = 0 if self.is_held_up() else max(0, min(len(wanted), most, self._pool.num_free))
        pages = [self._first + page for page in self._pool.take_many(count)]
        self.begun += count
        self._held |= zip(pages, wanted, strict=False)
        return pages

    def settle(self, pages: Sequence[int], arrived: Sequence[bool]) -> None:
        """Nobody writes to these pages any more; arrived: whose content is there, and has been checked."""
        for page, is_there in zip(pages, arrived, strict=True):
            wanted = self._held.pop(page)
            if is_there:
                self._pool.publish(page - self._first, *wanted)
        self._pool.release([page - self._first for page in pages])

    def settle_as(self, page: int, name: bytes) -> None:
        """The same of a page for which several contents were wanted: that of `name` is there, of b"" none."""
        self._held[page] = self._held[page]._replace(name=name)
        self.settle([page], [bool(name)])
