"""Names of what lies in the pages of a second model, which mirror those of the served one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile


class PageTags:
    """By page, the name of the prefix whose last keys and values lie there, or none.

    A name is one of PrefixChain: a hash of the salt and of all tokens up to the page's end. Whoever writes a
    page clears its tag first, and gives it one when it is full: so a tag is true, whatever the page's
    sequences are, and whatever became of the served model's page.
    """

    def __init__(self, num_pages: int) -> None:
        self._names: list[bytes | None] = [None] * num_pages
        self._tenants: list[bytes] = [b""] * num_pages

    def count_known(self, names: Sequence[bytes], pages: Sequence[int]) -> int:
        """Leading `pages` that hold what `names` say, as many as both have."""
        pairs = zip(names, pages, strict=False)
        return sum(1 for _ in takewhile(lambda pair: self._names[pair[1]] == pair[0], pairs))

    def clear(self, pages: Iterable[int]) -> None:
        """They are about to be written to."""
        for page in pages:
            self._names[page] = None

    def fill(self, page: int, name: bytes, tenant: bytes) -> None:
        """It is full of what `name` says. tenant: as in PrefixChain."""
        self._names[page], self._tenants[page] = name, tenant

    def forget(self, tenant: bytes) -> None:
        """Nobody finds this tenant's pages any more: they are written anew before they are read."""
        self.clear([page for page, owner in enumerate(self._tenants) if owner == tenant])

    def forget_all(self) -> None:
        """The content of all pages is lost."""
        self.clear(range(len(self._names)))
