"""The interface of a tier: where pages lie that the KV cache has no room for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from firelane.kv.tiers.slots import PageKey

TierName = Literal["host", "disk"]
TIER_NAMES: tuple[TierName, ...] = ("host", "disk")


class TierStats(NamedTuple):
    """Pages now, and counters from the start: pages that were read, written, given up for others and found
    damaged."""

    pages: int = 0
    read: int = 0
    written: int = 0
    evicted: int = 0
    damaged: int = 0


class PageTier(Protocol):
    """A store of pages by name. `put` and what forgets is called by one thread, all else by any. Nothing
    raises: a tier that fails has no page, and says why in the log, once."""

    @property
    def name(self) -> TierName: ...

    def contains(self, key: PageKey) -> bool:
        """The page was there a moment ago."""
        ...

    def touch(self, key: PageKey) -> None:
        """The page, if it is there, was asked for again."""
        ...

    def put(self, key: PageKey, tenant: bytes, page: NDArray[np.uint8], is_true: Callable[[], bool]) -> None:
        """Store a copy of a page, uint8 [at most page_bytes], which may be written to meanwhile: is_true says
        behind the copy whether it is one. Else nothing is stored."""
        ...

    def get(self, key: PageKey, into: NDArray[np.uint8]) -> bool:
        """Copy a page to `into`, of the size that was stored; whether its whole, true content is there
        now."""
        ...

    def forget(self, tenant: bytes) -> int:
        """Erase all pages of a tenant; returns how many."""
        ...

    def standby(self) -> None:
        """Give back memory, if need be with the pages in it."""
        ...

    def refresh(self) -> None:
        """Look at what others have stored since; called now and then."""
        ...

    def stats(self) -> TierStats: ...

    def close(self) -> None:
        """Idempotent; nothing is called afterwards."""
        ...
