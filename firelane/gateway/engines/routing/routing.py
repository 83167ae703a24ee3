"""The two parts of a request where engines have roles, and the choice of an engine for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.routed_engine import RoutedEngine
from firelane.gateway.engines.routing.least_time import LeastTime
from firelane.gateway.engines.routing.page_record import PageRecord
from firelane.gateway.engines.routing.policies import (
    LeastRequests,
    LeastTokens,
    PageAware,
    Policy,
    Random,
    SessionAffinity,
    in_time,
)
from firelane.wire.cache_events import PageChanges, numbers_of
from firelane.wire.page_names import PAGE_TOKENS, PageNames


class NoPeerPages:
    """Engines compute what they have not."""

    def sent(self, flight: InFlight, engine: RoutedEngine, serving: Sequence[RoutedEngine]) -> None:
        pass


class SharedPages:
    """The engine with the longest part of a prompt gives its pages to the one that was chosen, where that has
    less of it. The record is an estimate: what the peer has not any more is computed."""

    def __init__(self, record: PageRecord | None = None) -> None:
        self._record = PageRecord() if record is None else record

    def sent(self, flight: InFlight, engine: RoutedEngine, serving: Sequence[RoutedEngine]) -> None:
        request = flight.request
        if request.pooling is not None or request.pages_at:
            return
        names = PageNames(request.salt, request.prompt)
        cached = {life: pages for pages, lives in self._record.cached(names) for life in lives}
        own = cached.get(engine.life, 0)
        self._record.expect(engine, names, own)
        peers = [other for other in serving if other is not engine and other.engine_id]
        if not (cached and peers and engine.engine_id):
            return
        peer = max(peers, key=lambda other: cached.get(other.life, 0))
        most = cached.get(peer.life, 0)
        if most > own:
            flight.have_pages_of(peer.engine_id, peer.pages_address)
            flight.cached_tokens = most * PAGE_TOKENS


PeerPages = NoPeerPages | SharedPages
"""The hook of a router without roles."""


WORTH_TOKENS = 64
"""Shorter prompts are computed where they decode: a hand-over costs a step of some tokens, too."""
BUSY_TOKENS, SLOWER = 512, 1.1
"""An engine for decode takes a prompt where it has the first token sooner, by the time of so many tokens: its
own streams pay for it. Beside them a token takes so many times as long as at an engine for prefill."""
SPARE_TOKENS = 8192
"""Prompt tokens that an engine for decode may have left while it still takes such a prompt."""
CHUNK_TOKENS = 448
"""Tokens of a prompt in one step of an engine for decode that has other requests, too."""
MOST_STEPS = 8
"""Short steps that a chunk may take. Where it takes longer than so many short steps, as on CPUs, streams
would wait too long for it: an engine for decode then takes a prompt only to end a long queue."""
QUEUE_TOKENS, QUEUE_SHARE, IDLE_TOKENS = 8192, 0.75, 256
"""That is, more tokens before the prompt, and a larger share of its own, at the engine for prefill; and fewer
at the one for decode."""
NO_ROLES = {"both"}


POLICIES: dict[str, Callable[[PageRecord], Policy]] = {
    "least-tokens": lambda _: LeastTokens(),
    "least-requests": lambda _: LeastRequests(),
    "random": lambda _: Random(),
    "affinity": lambda _: SessionAffinity(),
    "page-aware": PageAware,
    "least-time": LeastTime,
}
"""By their names in gateway.config.model.ROUTING."""
FOLLOWING = ("page-aware", "least-time")
"""Policies that are told of engines' pages."""


EngineT = TypeVar("EngineT", bound=RoutedEngine)


class EngineChoice(NamedTuple, Generic[EngineT]):
    """next_engine: the one that goes on behind the first token; None: `engine` does all."""

    engine: EngineT
    next_engine: EngineT | None = None


class Router:
    """Prompts go to engines for prefill, and from there to those for decode. While the former are busy, the
    latter do all of those that they compute clearly sooner. Where either kind is missing, the other one does
    all. Without roles, or for requests that have no output, one engine does all; it may have pages of others
    (peer_pages)."""

    def __init__(
        self,
        prompts: Policy | None = None,
        decodes: Policy | None = None,
        peer_pages: PeerPages | None = None,
        records: Sequence[PageRecord] = (),
    ) -> None:
        """records: that are asked for engines' pages, and that engines keep true."""
        self._prompts, self._decodes = prompts or LeastTokens(), decodes or LeastTokens()
        self._peer_pages, self._records = peer_pages or NoPeerPages(), records

    @staticmethod
    def of(name: str, *, shares_pages: bool = False) -> Router:
        """The router that chooses by the policy of this name, one for each role. shares_pages: engines have
        pages from each other."""
        record, of_peers = PageRecord(), PageRecord()
        asked = ((record, name in FOLLOWING), (of_peers, shares_pages))
        return Router(
            POLICIES[name](record),
            POLICIES[name](record),
            SharedPages(of_peers) if shares_pages else None,
            [one for one, is_asked in asked if is_asked],
        )

    @property
    def follows_pages(self) -> bool:
        """Engines are to tell their pages."""
        return bool(self._records)

    def on_pages(self, engine: RoutedEngine, frame: PageChanges) -> None:
        stored, removed = numbers_of(frame.stored), numbers_of(frame.removed)
        for record in self._records:
            record.tell(engine, stored, removed, is_whole=frame.is_whole)

    def lost(self, engine: RoutedEngine) -> None:
        """The engine has died, or its connection."""
        for record in self._records:
            record.lost(engine)

    def route(self, flight: InFlight, serving: Sequence[EngineT]) -> EngineChoice[EngineT] | None:
        """The caller sends the request there. None where no engine serves."""
        if not serving:
            return None
        if len(serving) == 1:
            return EngineChoice(_assigned(flight, serving[0]))
        if {link.role for link in serving} == NO_ROLES:
            return self._of_all(flight, serving)
        prefillers = [link for link in serving if link.role != "decode"]
        decoders = [link for link in serving if link.role != "prefill"]
        if not any(map(_gives_pages, prefillers)):
            return self._of_all(flight, serving)
        if decoders and (flight.tokens or _is_short(flight)):
            return EngineChoice(self._go_on(flight, decoders))
        spare = [] if flight.request.pooling else [link for link in decoders if _is_spare(link)]
        if spare:
            link = self._decodes.choose(flight, spare)
            if _is_sooner(flight, link, self._prompts.choose(flight, prefillers)):
                return EngineChoice(_sent(self._decodes, flight, [link]))
        link = _sent(self._prompts, flight, prefillers)
        takers = [one for one in decoders if one.engine_id] if _gives_pages(link) else []
        goes_on = takers and _goes_on(flight)
        return EngineChoice(link, self._decodes.choose(flight, takers) if goes_on else None)

    def _go_on(self, flight: InFlight, decoders: Sequence[EngineT]) -> EngineT:
        """The engine that decodes; of pages that it pulls it computes nothing."""
        announced = [link for link in decoders if link.engine_id == flight.next_engine]
        link = _sent(self._decodes, flight, announced or decoders)
        if flight.tokens and flight.pages_at:
            flight.cached_tokens = len(flight.request.prompt) // 4
        return link

    def _of_all(self, flight: InFlight, serving: Sequence[EngineT]) -> EngineChoice[EngineT]:
        """One engine that does all, of those that can keep the request's deadline where there are any."""
        link = _sent(self._prompts, flight, in_time(flight, serving))
        self._peer_pages.sent(flight, link, serving)
        return EngineChoice(link)

    def ended(self, flight: InFlight) -> None:
        """It has ended by itself."""
        for policy in (self._prompts, self._decodes):
            policy.ended(flight, len(flight.tokens))


def _sent(policy: Policy, flight: InFlight, links: Sequence[EngineT]) -> EngineT:
    link = _assigned(flight, policy.choose(flight, links))
    policy.sent(flight, link)
    return link


def _assigned(flight: InFlight, link: EngineT) -> EngineT:
    """The engine, where nothing is left of what the one before was to do."""
    flight.cached_tokens, flight.chunk_tokens = 0, CHUNK_TOKENS if link.role == "decode" else 0
    return link


def _is_sooner(flight: InFlight, decoder: RoutedEngine, prefiller: RoutedEngine) -> bool:
    """The engine for decode is likely to have the prompt's first token clearly before the one for prefill."""
    own = len(flight.request.prompt) // 4
    if _is_slow(decoder):
        queue = max(QUEUE_TOKENS, QUEUE_SHARE * own)
        return decoder.prefill_tokens < IDLE_TOKENS and prefiller.prefill_tokens > queue
    return BUSY_TOKENS + SLOWER * (decoder.prefill_tokens + own) < prefiller.prefill_tokens + own


def _is_slow(link: RoutedEngine) -> bool:
    """False of one that has not told its times yet."""
    return CHUNK_TOKENS * link.token_ms > MOST_STEPS * link.step_ms


def _gives_pages(link: RoutedEngine) -> bool:
    return link.role == "prefill" and link.engine_id != ""


def _is_spare(link: RoutedEngine) -> bool:
    return link.role == "decode" and link.prefill_tokens < SPARE_TOKENS


def _is_short(flight: InFlight) -> bool:
    return len(flight.request.prompt) < 4 * WORTH_TOKENS and flight.request.pooling is None


def _goes_on(flight: InFlight) -> bool:
    """There is output behind the first token."""
    return flight.request.pooling is None and flight.request.sampling.max_tokens > 1
