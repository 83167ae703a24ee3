"""Response formats: answers as one JSON object or as server-sent events, and what the APIs' formats share.

Everything of an event that does not change from token to token is made once, as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from firelane.api.usage import Usage
from firelane.telemetry.traces import RequestTimes
from firelane.text.deltas import Delta, ToolCall
from firelane.wire.frames import PagesAt

DONE = b"data: [DONE]\n\n"
encode_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class TokenReport:
    """Log-probability of one token, None for the first of an echoed prompt; alternatives best first."""

    token: int
    logprob: float | None
    top: list[tuple[int, float]]


@dataclass(slots=True)
class ChoiceResult:
    """One choice of an answer in one piece, or what one event adds to it. token_ids, prompt_ids,
    prompt_reports: None where the client did not ask for them. echoed_tokens: reports of the prompt, at the
    beginning of `reports`. stop: the stop string that has ended it. pages: of its prompt, for other servers,
    where the client asked for that.
    """

    index: int
    text: str = ""
    reports: list[TokenReport] = field(default_factory=list[TokenReport])
    reason: str | None = None
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    token_ids: list[int] | None = None
    prompt_ids: list[int] | None = None
    prompt_reports: list[TokenReport] | None = None
    echoed_tokens: int = 0
    stop: str | None = None
    pages: PagesAt | None = None


@dataclass(frozen=True, slots=True)
class BestOf:
    """Choice, where more answers are drawn than the client gets (`best_of`): of `draws` to each prompt the
    `keep` of the highest mean log-probability a token.
    """

    draws: int
    keep: int

    def choose(self, results: list[ChoiceResult]) -> list[ChoiceResult]:
        """results: `draws` of the first prompt, then those of the next ... The best come first."""
        chosen: list[ChoiceResult] = []
        for begin in range(0, len(results), self.draws):
            group = sorted(results[begin : begin + self.draws], key=_mean_logprob, reverse=True)
            chosen += group[: self.keep]
        return [replace(result, index=index) for index, result in enumerate(chosen)]


def _mean_logprob(result: ChoiceResult) -> float:
    """Mean over the answer, without an echoed prompt."""
    reports: list[TokenReport] = result.reports[result.echoed_tokens :]
    return sum(report.logprob or 0.0 for report in reports) / max(1, len(reports))


@dataclass(slots=True)
class LiveUsage:
    """The usage so far of an answer that is being made, and its times; both are set when it starts."""

    read: Callable[[], Usage] | None = None
    times: Callable[[], RequestTimes] | None = None


@dataclass(frozen=True, slots=True)
class ResponseIdentity:
    """Fields that all chunks of one answer repeat. created: Unix time in seconds. fingerprint: stands for the
    model and the program that serves it. usage_in_chunks: chunks say `usage: null` because the last one will
    hold it; with live_usage they say how much it is so far. tokens_by_id: reports name tokens by their ids.
    """

    id: str
    created: int
    model: str
    fingerprint: str = ""
    service_tier: str | None = None
    usage_in_chunks: bool = False
    live_usage: LiveUsage | None = None
    tokens_by_id: bool = False


class ResponseEncoder(Protocol):
    """Serializer of one kind of answer. `reports` is None when the client did not ask for logprobs;
    `offset` counts the characters of the choice before these reports.
    """

    def opening(self, index: int) -> bytes:
        """The event before a choice's first text, or b""."""
        ...

    def content_chunks(self, index: int) -> Callable[[Sequence[str]], bytes]:
        """Makes the events that hold nothing but text, of one choice: one for each text."""
        ...

    def event(self, part: ChoiceResult, offset: int | None) -> bytes:
        """An event with reports (unless `offset` is None) or an end; b"" where it needs none."""
        ...

    def delta(self, index: int, delta: Delta) -> bytes:
        """An event that holds a piece which is not content; b"" where it comes later."""
        ...

    def closing(self, usage: Usage) -> bytes:
        """The end of a stream that went well."""
        ...

    def failure(self, body: bytes) -> bytes:
        """The end of a stream that failed; body: an error envelope."""
        ...

    def response(self, results: list[ChoiceResult], usage: Usage, with_logprobs: bool) -> bytes: ...


class EventFrame:
    """The bytes of an event before and after its choices."""

    __slots__ = ("_ends_in_usage", "_fixed", "_live", "head")

    def __init__(self, who: ResponseIdentity, kind: str) -> None:
        tier = b"" if who.service_tier is None else b'"service_tier":%b,' % encode_json(who.service_tier)
        self.head = (
            b'data: {"id":%b,"object":%b,"created":%d,"model":%b,"system_fingerprint":%b,%b"choices":['
            % (
                encode_json(who.id),
                encode_json(kind),
                who.created,
                encode_json(who.model),
                encode_json(who.fingerprint),
                tier,
            )
        )
        self._live = who.live_usage
        self._ends_in_usage = who.usage_in_chunks
        self._fixed = b'],"usage":null}\n\n' if who.usage_in_chunks else b"]}\n\n"

    @property
    def tail(self) -> bytes:
        if self._live is None or self._live.read is None:
            return self._fixed
        return b'],"usage":%b}\n\n' % encode_json(self._live.read())

    def content_chunks(self, before: bytes, after: bytes) -> Callable[[Sequence[str]], bytes]:
        """A writer of events that differ only in their text."""
        if self._live is None:
            return around(self.head + before, after + self._fixed)
        return lambda texts: around(self.head + before, after + self.tail)(texts)

    def closing(self, usage: Usage) -> bytes:
        """The end of a stream, with its usage where the client wants that."""
        return (
            b'%b],"usage":%b}\n\n%b' % (self.head, encode_json(usage), DONE) if self._ends_in_usage else DONE
        )


def around(head: bytes, tail: bytes) -> Callable[[Sequence[str]], bytes]:
    """A writer of texts: each as JSON, between bytes that do not change."""
    between = tail + head
    return lambda texts: b"%b%b%b" % (head, between.join(map(encode_json, texts)), tail)


def each(write: Callable[[str], bytes]) -> Callable[[Sequence[str]], bytes]:
    """A writer of texts, of one that writes one text."""
    return lambda texts: b"".join(map(write, texts))


def transfer_params(results: Sequence[ChoiceResult]) -> dict[str, Any] | UnsetType:
    """The `kv_transfer_params` of an answer, for the server that goes on with the request."""
    pages = results[0].pages if results else None
    return UNSET if pages is None else params_of(pages)


def params_of(pages: PagesAt) -> dict[str, Any]:
    """Place of a prompt's pages, in the form of vLLM's connectors."""
    host, _, port = pages.address.rpartition(":")
    return {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_engine_id": pages.engine_id,
        "remote_block_ids": pages.blocks,
        "remote_host": host.strip("[]"),
        "remote_port": int(port),
        "tp_size": 1,
    }


def error_event(body: bytes) -> bytes:
    return b"data: %b\n\n" % body
