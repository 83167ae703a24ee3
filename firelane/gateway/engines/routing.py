"""The two parts of a request where engines have roles, and the choice of an engine for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.least_time import LeastTime
from firelane.gateway.engines.peer_pages import NoPeerPages, PeerPages, SharedPages
from firelane.gateway.engines.policies import (
    Candidate,
    LeastRequests,
    LeastTokens,
    PageAware,
    Policy,
    Random,
    SessionAffinity,
)

WORTH_TOKENS = 64
"""Shorter prompts are computed where they decode: a hand-over costs a step of some tokens, too."""


POLICIES: dict[str, Callable[[], Policy]] = {
    "least-tokens": LeastTokens,
    "least-requests": LeastRequests,
    "random": Random,
    "affinity": SessionAffinity,
    "page-aware": PageAware,
    "least-time": LeastTime,
}
"""By their names in gateway.routing_names.ROUTING."""


class RoutedEngine(Candidate, Protocol):
    """An engine with a role. role, engine_id: as in wire.Ready."""

    @property
    def role(self) -> str: ...
    @property
    def engine_id(self) -> str: ...


EngineT = TypeVar("EngineT", bound=RoutedEngine)


class Route(NamedTuple, Generic[EngineT]):
    """next_link: the engine that goes on behind the first token; None: `link` does all."""

    link: EngineT
    next_link: EngineT | None = None


class Router:
    """Prompts go to engines for prefill, and from there to those for decode. Where either kind is missing,
    the other one does all. Without roles, or for requests that have no output, one engine does all; it may
    have pages of others (peer_pages)."""

    def __init__(
        self,
        prompts: Policy | None = None,
        decodes: Policy | None = None,
        peer_pages: PeerPages | None = None,
    ) -> None:
        self._prompts, self._decodes = prompts or LeastTokens(), decodes or LeastTokens()
        self._peer_pages = peer_pages or NoPeerPages()

    @staticmethod
    def of(name: str, *, shares_pages: bool = False) -> Router:
        """The router that chooses by the policy of this name, one for each role: what their engines
        are sent differs. shares_pages: engines have pages from each other."""
        return Router(POLICIES[name](), POLICIES[name](), SharedPages() if shares_pages else None)

    def route(self, flight: InFlight, serving: Sequence[EngineT]) -> Route[EngineT] | None:
        """The caller sends the request there. None where no engine serves."""
        if not serving:
            return None
        prefillers = [link for link in serving if link.role != "decode"]
        decoders = [link for link in serving if link.role != "prefill"]
        if not any(map(_gives_pages, prefillers)):
            chosen = _sent(self._prompts, flight, serving)
            self._peer_pages.sent(flight, chosen, serving)
            return Route(chosen)
        if decoders and (flight.tokens or _is_short(flight)):
            announced = [link for link in decoders if link.engine_id == flight.next_engine]
            return Route(_sent(self._decodes, flight, announced or decoders))
        link = _sent(self._prompts, flight, prefillers)
        goes_on = decoders and _gives_pages(link) and _goes_on(flight)
        return Route(link, self._decodes.choose(flight, decoders) if goes_on else None)

    def ended(self, flight: InFlight) -> None:
        """It has ended by itself."""
        for policy in (self._prompts, self._decodes):
            policy.ended(flight, len(flight.tokens))


def _sent(policy: Policy, flight: InFlight, links: Sequence[EngineT]) -> EngineT:
    link = policy.choose(flight, links)
    flight.cached_tokens = 0
    policy.sent(flight, link)
    return link


def _gives_pages(link: RoutedEngine) -> bool:
    return link.role == "prefill" and link.engine_id != ""


def _is_short(flight: InFlight) -> bool:
    return len(flight.request.prompt) < 4 * WORTH_TOKENS and flight.request.pooling is None


def _goes_on(flight: InFlight) -> bool:
    """There is output behind the first token."""
    return flight.request.pooling is None and flight.request.sampling.max_tokens > 1
