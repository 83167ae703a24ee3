"""A record of the children that were replaced, and of those that cannot be."""

from __future__ import annotations

import logging
import threading

log = logging.getLogger(__name__)


class Replacements:
    """Children that were replaced because they died or hung, by kind of process. Any thread may call it.

    counts: replacements so far, by kind.
    broken: the reason why none of a kind can be had at present, by kind.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.broken: dict[str, str] = {}
        self._lock = threading.Lock()

    def note(self, kind: str, reason: str) -> None:
        """Count and log that a child is replaced. reason: how the one before ended, in words for people."""
        with self._lock:
            self.counts = {**self.counts, kind: self.counts.get(kind, 0) + 1}
        log.warning("child_replaced kind=%s reason=%r", kind, reason)

    def fails(self, kind: str, reason: str) -> None:
        """No child of this kind can be had. Logged when that is new."""
        with self._lock:
            is_new = kind not in self.broken
            self.broken = {**self.broken, kind: reason}
        if is_new:
            log.error("child_not_replaced kind=%s reason=%r", kind, reason)

    def works(self, kind: str) -> None:
        """A child of this kind serves again."""
        if kind in self.broken:
            with self._lock:
                self.broken = {other: why for other, why in self.broken.items() if other != kind}
