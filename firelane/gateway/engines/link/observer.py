"""The observer of links to engines, as they see it."""

from __future__ import annotations

from typing import Protocol, TypeVar

from firelane.gateway.engines.in_flight import InFlight
from firelane.wire.cache_events import PageChanges
from firelane.wire.frames import Ready, StepFrame

LinkT = TypeVar("LinkT", contravariant=True)


class LinkObserver(Protocol[LinkT]):
    """Hears what happens at a link, in the order in which it happens, and acts on it at once."""

    def on_ready(self, link: LinkT, ready: Ready) -> str:
        """The reason why this engine cannot be used; "" where it can."""
        ...

    def on_awake(self, link: LinkT) -> None:
        """The engine is back from standby."""
        ...

    def on_adapters(self, link: LinkT) -> None:
        """The engine serves other adapters from now on."""
        ...

    def on_frame(self, link: LinkT, frame: StepFrame, now_s: float) -> None:
        """After all sinks have seen the frame."""
        ...

    def on_lost(self, link: LinkT, lost: list[InFlight], reason: str, *, is_seen: bool) -> None:
        """The engine has gone; nobody will answer these any more. is_seen: as in Recovery."""
        ...

    def on_returned(self, link: LinkT, returned: list[InFlight]) -> None:
        """The engine is ending and gives these back."""
        ...

    def on_left(self, link: LinkT) -> None:
        """The engine may have told the end of requests that were taken from it: they may come back."""
        ...

    def on_ended(self, link: LinkT, flight: InFlight) -> None:
        """The request has come to its end."""
        ...

    def on_pages(self, link: LinkT, frame: PageChanges) -> None:
        """Pages of the engine have changed, for those who follow them."""
        ...

    def on_handed_over(self, link: LinkT, flight: InFlight) -> None:
        """The engine has done its part of the request."""
        ...
