"""The choice of an engine for a request: policies, and the two parts of a request where engines have
roles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.link import EngineLink

WORTH_TOKENS = 64
"""Shorter prompts are computed where they decode: a hand-over costs a step of some tokens, too."""


class Policy(Protocol):
    """A rule for engines that could all take the request."""

    def choose(self, flight: InFlight, links: Sequence[EngineLink]) -> EngineLink:
        """One of `links`, of which there is at least one."""
        ...


class LeastTokens:
    """The engine with the least work; that of the last request for one with the same prompt."""

    def __init__(self) -> None:
        self._sibling: tuple[bytes, EngineLink] | None = None

    def choose(self, flight: InFlight, links: Sequence[EngineLink]) -> EngineLink:
        if len(links) == 1:
            return links[0]
        prompt, sibling = self._sibling or (b"", None)
        if sibling is None or prompt is not flight.request.prompt or sibling not in links:
            sibling = min(links, key=lambda link: link.tokens_ahead)
        self._sibling = flight.request.prompt, sibling
        return sibling


class Route(NamedTuple):
    """next_link: the engine that goes on behind the first token; None: `link` does all."""

    link: EngineLink
    next_link: EngineLink | None = None


class Router:
    """Prompts go to engines for prefill, and from there to those for decode. Where either kind is missing,
    the other one does all. Without roles, or for requests that have no output, one engine does all."""

    def __init__(self, prompts: Policy | None = None, decodes: Policy | None = None) -> None:
        self._prompts, self._decodes = prompts or LeastTokens(), decodes or LeastTokens()

    def route(self, flight: InFlight, serving: Sequence[EngineLink]) -> Route | None:
        """None where no engine serves."""
        if not serving:
            return None
        prefillers = [link for link in serving if link.role != "decode"]
        decoders = [link for link in serving if link.role != "prefill"]
        if not any(map(_gives_pages, prefillers)):
            return Route(self._prompts.choose(flight, serving))
        if decoders and (flight.tokens or _is_short(flight)):
            chosen = [link for link in decoders if link.engine_id == flight.next_engine]
            return Route(self._decodes.choose(flight, chosen or decoders))
        link = self._prompts.choose(flight, prefillers)
        goes_on = decoders and _gives_pages(link) and _goes_on(flight)
        return Route(link, self._decodes.choose(flight, decoders) if goes_on else None)


def _gives_pages(link: EngineLink) -> bool:
    return link.role == "prefill" and link.engine_id != ""


def _is_short(flight: InFlight) -> bool:
    return len(flight.request.prompt) < 4 * WORTH_TOKENS and flight.request.pooling is None


def _goes_on(flight: InFlight) -> bool:
    """There is output behind the first token."""
    return flight.request.pooling is None and flight.request.sampling.max_tokens > 1
