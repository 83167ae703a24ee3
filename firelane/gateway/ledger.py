"""What is kept of each request when it has ended: its tenant's usage and cost, a line in the log, a trace."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from firelane.gateway.exchange import Exchange
from firelane.gateway.prompt import Prompt
from firelane.gateway.tenants.prices import Prices
from firelane.gateway.tenants.quota import Clock
from firelane.gateway.tenants.tenant import OTHERS_NAME
from firelane.telemetry.logs import event
from firelane.telemetry.metrics import Counter, Registry
from firelane.telemetry.traces import NO_TRACES, RequestTimes, Traces

log = logging.getLogger(__name__)
CLIENT_GONE = 499
"""Status, in the log alone, of a request whose client has left (nginx's number)."""
MAX_TENANT_LABELS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a request ended that had been admitted. reason: a finish reason, "abort" or "error". times: by the
    gateway's clock. cached_tokens are among prompt_tokens.
    """

    status: int
    reason: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    times: RequestTimes


class Ledger:
    """Usage by tenant. The number of tenants that metrics tell apart is bounded."""

    def __init__(self, registry: Registry, prices: Prices, now_s: Clock, traces: Traces = NO_TRACES) -> None:
        self.log_prompts = False
        self.now_s = now_s
        self.prices = prices
        self._traces = traces
        self._labels: set[str] = set()

        def counter(name: str, text: str) -> Counter:
            return registry.counter(f"firelane:tenant_{name}", text, "tenant")

        self._requests = counter("requests", "Requests that were admitted and have ended.")
        self._rejected = counter("rejected", "Requests that were answered with an error before their start.")
        self._prompt = counter("prompt_tokens", "Prompt tokens, those from the prefix cache included.")
        self._cached = counter("cached_tokens", "Prompt tokens that came from the prefix cache.")
        self._generated = counter("generated_tokens", "Tokens generated, also for clients that went away.")
        self._cost = counter("cost", "Cost of the tokens, in the currency of the price file.")
        self._affinity = registry.counter(
            "firelane:session_affinity_requests", "Admitted requests with an x-session-affinity header."
        )

    def submitted(self, exchange: Exchange, prompts: list[Prompt]) -> None:
        """What goes to the engine. Prompts are logged only by a server that was told to."""
        if self.log_prompts:
            for prompt in prompts:
                text = prompt.ids if prompt.text is None else prompt.text
                event(log, "request_prompt", {"id": exchange.id, "prompt": text})

    def ended(self, exchange: Exchange, outcome: Outcome) -> None:
        """Once for each admitted request, however it ended."""
        o, tenant = outcome, self._label(exchange)
        cost = self.prices.of(o.model).cost(o.prompt_tokens, o.cached_tokens, o.generated_tokens)
        self._requests.add(1, tenant)
        self._prompt.add(o.prompt_tokens, tenant)
        self._cached.add(o.cached_tokens, tenant)
        self._generated.add(o.generated_tokens, tenant)
        self._cost.add(cost, tenant)
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
        self._rejected.add(1, self._label(exchange))
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


def _line(exchange: Exchange, outcome: Outcome, cost: float) -> dict[str, object]:
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


def _attributes(exchange: Exchange, outcome: Outcome) -> dict[str, str | int]:
    """Of a trace, by OpenTelemetry's names for generative AI where it has them."""
    return {
        "gen_ai.request.model": outcome.model,
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
