"""The owner of links to engines, as they see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from firelane.gateway.engines.in_flight import InFlight
from firelane.wire.frames import Ready, StepFrame

if TYPE_CHECKING:
    from firelane.gateway.engines.link import EngineLink


class LinkOwner(Protocol):
    """Whoever submits through a link."""

    def on_ready(self, link: EngineLink, ready: Ready) -> str:
        """Why this engine cannot be used; "" where it can."""
        ...

    def on_awake(self, link: EngineLink) -> None:
        """The engine is back from standby."""
        ...

    def on_frame(self, link: EngineLink, frame: StepFrame, now_s: float) -> None:
        """After all sinks have seen the frame."""
        ...

    def on_lost(self, link: EngineLink, lost: list[InFlight], reason: str) -> None:
        """The engine has gone; nobody will answer these any more."""
        ...

    def on_returned(self, link: EngineLink, returned: list[InFlight]) -> None:
        """The engine is ending and gives these back."""
        ...

    def on_handed_over(self, link: EngineLink, flight: InFlight) -> None:
        """The engine has done its part of the request."""
        ...
