"""Billing: the usage and cost of each ended request by tenant and model, its line in the log, its trace.

Prices of tokens are a small TOML or JSON file, read again on SIGHUP; docs/tenants.md describes it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from firelane.errors import UsageError
from firelane.gateway.http.exchange import Exchange
from firelane.gateway.tenants.keyfile import load
from firelane.gateway.tenants.tenant import OTHERS_NAME, Clock
from firelane.telemetry.logs import event
from firelane.telemetry.metrics import Counter, Registry
from firelane.telemetry.traces import NO_TRACES, RequestTimes, Traces
from firelane.text.prompt import Prompt

log = logging.getLogger(__name__)
MILLION = 1_000_000
ANY_MODEL = "*"
Amount = Annotated[float, Meta(ge=0, le=1e9)]


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For a million tokens. cached_input: of a prompt's tokens that came from the prefix cache; None: as
    input.
    """

    input: Amount = 0.0
    cached_input: Amount | None = None
    output: Amount = 0.0

    def cost(self, prompt_tokens: int, cached_tokens: int, generated_tokens: int) -> float:
        """cached_tokens: those among prompt_tokens."""
        cached = self.input if self.cached_input is None else self.cached_input
        fresh = prompt_tokens - cached_tokens
        return (fresh * self.input + cached_tokens * cached + generated_tokens * self.output) / MILLION


FREE = Price()


class PriceFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    models: dict[str, Price]


class Prices:
    """Prices by served name, else those of `*`, else nothing is charged."""

    def __init__(self, path: Path | None) -> None:
        """Raises UsageError on a file that cannot be used."""
        self._path = path
        self._models = {} if path is None else _read(path)

    def of(self, names: tuple[str, ...]) -> Price:
        """The price of the first of a model's names that has one."""
        for name in (*names, ANY_MODEL):
            if name in self._models:
                return self._models[name]
        return FREE

    def reload(self) -> None:
        """Never raises; a file that cannot be used leaves the old prices."""
        if self._path is None:
            return
        try:
            self._models = _read(self._path)
        except UsageError as error:
            log.error("prices_not_reloaded the old ones stay: %s", error)
            return
        log.info("prices_reloaded models=%d", len(self._models))


def _read(path: Path) -> dict[str, Price]:
    file: PriceFile = load(path, PriceFile)
    return file.models


CLIENT_GONE = 499
"""Status, in the log alone, of a request whose client has left (nginx's number)."""
MAX_TENANT_LABELS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """Result of an admitted request. reason: a finish reason, "abort" or "error". names: of its model, the
    reported one first. times: by the gateway's clock. cached_tokens are among prompt_tokens.
    """

    status: int
    reason: str
    names: tuple[str, ...]
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    times: RequestTimes


class TenantCounters:
    """Usage of one model by tenant."""

    def __init__(self, registry: Registry) -> None:
        def counter(name: str, text: str) -> Counter:
            return registry.counter(f"firelane:tenant_{name}", text, "tenant")

        self.requests = counter("requests", "Requests that were admitted and have ended.")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens, those from the prefix cache included.")
        self.cached_tokens = counter("cached_tokens", "Prompt tokens that came from the prefix cache.")
        self.generated_tokens = counter("generated_tokens", "Tokens generated, also for clients that left.")
        self.cost = counter("cost", "Cost of the tokens, in the currency of the price file.")

    def add(self, tenant: str, outcome: RequestOutcome, cost: float) -> None:
        self.requests.add(1, tenant)
        self.prompt_tokens.add(outcome.prompt_tokens, tenant)
        self.cached_tokens.add(outcome.cached_tokens, tenant)
        self.generated_tokens.add(outcome.generated_tokens, tenant)
        self.cost.add(cost, tenant)


class UsageLog:
    """Usage by model and tenant. The number of tenants that metrics tell apart is bounded."""

    def __init__(self, registry: Registry, prices: Prices, now_s: Clock, traces: Traces = NO_TRACES) -> None:
        self.log_prompts = False
        self.now_s = now_s
        self.prices = prices
        self._registry = registry
        self._traces = traces
        self._labels: set[str] = set()
        self._models: dict[str, TenantCounters] = {}
        self.rejected = registry.counter(
            "firelane:tenant_rejected",
            "Requests that were answered with an error before their start.",
            "tenant",
        )
        self._affinity = registry.counter(
            "firelane:session_affinity_requests", "Admitted requests with an x-session-affinity header."
        )

    def model(self, name: str) -> TenantCounters:
        """The counters of the model of this (reported) name."""
        if name not in self._models:
            self._models[name] = TenantCounters(self._registry.labelled(model_name=name))
        return self._models[name]

    def submitted(self, exchange: Exchange, prompts: list[Prompt]) -> None:
        """Log the prompts that go to the engine, where the server was told to."""
        if self.log_prompts:
            for prompt in prompts:
                text = prompt.ids.tolist() if prompt.text is None else prompt.text
                event(log, "request_prompt", {"id": exchange.id, "prompt": text})

    def ended(self, exchange: Exchange, outcome: RequestOutcome) -> None:
        """Once for each admitted request, however it ended."""
        o = outcome
        cost = self.prices.of(o.names).cost(o.prompt_tokens, o.cached_tokens, o.generated_tokens)
        self.model(o.names[0]).add(self._label(exchange), o, cost)
        if b"x-session-affinity" in exchange.request.headers:
            self._affinity.add()
        if self._traces is not NO_TRACES:
            self._traces.ended(exchange.request.headers, exchange.id, o.times, _attributes(exchange, o))
        if log.isEnabledFor(logging.INFO):
            event(log, "request_ended", _line(exchange, o, cost))

    def refused(self, exchange: Exchange, status: int, why: str) -> None:
        """Once for each request to a model that was answered with an error before its start. `why`: a code,
        never what the client wrote.
        """
        self.rejected.add(1, self._label(exchange))
        if log.isEnabledFor(logging.INFO):
            event(log, "request_refused", {**_who(exchange), "status": status, "code": why})

    def _label(self, exchange: Exchange) -> str:
        name = exchange.request.tenant.label
        if name not in self._labels:
            if len(self._labels) >= MAX_TENANT_LABELS:
                return OTHERS_NAME
            self._labels.add(name)
        return name


def _who(exchange: Exchange) -> dict[str, object]:
    path = exchange.request.path.decode("ascii", "replace")
    return {"id": exchange.id, "tenant": exchange.request.tenant.label, "path": path[:200]}


def _line(exchange: Exchange, outcome: RequestOutcome, cost: float) -> dict[str, object]:
    times = outcome.times
    return {
        **_who(exchange),
        "status": outcome.status,
        "prompt_tokens": outcome.prompt_tokens,
        "cached_tokens": outcome.cached_tokens,
        "generated_tokens": outcome.generated_tokens,
        "ttft_ms": _ms(times.ttft_s),
        "total_ms": _ms(times.total_s),
        "finish_reason": outcome.reason,
        "cost": round(cost, 9),
    }


def _attributes(exchange: Exchange, outcome: RequestOutcome) -> dict[str, str | int]:
    """Attributes of a trace, by OpenTelemetry's names for generative AI where it has them."""
    return {
        "gen_ai.request.model": outcome.names[0],
        "gen_ai.usage.input_tokens": outcome.prompt_tokens,
        "gen_ai.usage.output_tokens": outcome.generated_tokens,
        "gen_ai.response.finish_reason": outcome.reason,
        "http.response.status_code": outcome.status,
        "url.path": exchange.request.path.decode("ascii", "replace"),
        "firelane.tenant": exchange.request.tenant.label,
        "firelane.cached_tokens": outcome.cached_tokens,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
