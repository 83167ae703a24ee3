"""Hop 4: which engine takes a request."""

from __future__ import annotations

from firelane.errors import EngineDeadError
from firelane.gateway.engine_link import EngineLink, LinkState
from firelane.wire.frames import Ready


class Router:
    """One engine today. `choose` is where cached prefixes, session affinity and load will count."""

    def __init__(self, link: EngineLink) -> None:
        self._link = link

    def choose(self) -> tuple[EngineLink, Ready]:
        """A link that serves, and what its engine can take. Raises EngineDeadError when there is none."""
        link = self._link
        if link.state is not LinkState.READY or link.ready is None:
            raise EngineDeadError(f"the engine does not serve ({link.state.value}): {describe(link)}")
        return link, link.ready


def describe(link: EngineLink) -> str:
    """Why a link does not serve, in words."""
    progress = link.progress
    if link.state is LinkState.STARTING and progress is not None:
        unit = f" {progress.unit}" if progress.unit else ""
        return f"{progress.stage} {progress.done:g} of {progress.total:g}{unit}"
    return link.reason
