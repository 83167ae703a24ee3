"""Child processes of engines, as the engines' beats tell of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from firelane.gateway.engines.link.link import EngineLink
from firelane.wire.frames import Beat


class EngineChildren:
    """Children that engines have replaced, with those of engines that have gone, and kinds that they lack."""

    def __init__(self, links: Callable[[], Iterable[EngineLink]]) -> None:
        self._links = links
        self._gone: Counter[str] = Counter()

    @property
    def replaced(self) -> Mapping[str, int]:
        """Replacements since the start, by kind of process."""
        total = self._gone.copy()
        for link in self._links():
            total.update(link.beat.replaced)
        return total

    @property
    def broken(self) -> dict[str, str]:
        """The reason why an engine has no child of a kind, by kind."""
        return {kind: why for link in self._links() for kind, why in link.beat.broken.items()}

    def gone(self, link: EngineLink) -> None:
        """The engine of this link has ended."""
        self._gone.update(link.beat.replaced)
        link.beat = Beat(0.0)
