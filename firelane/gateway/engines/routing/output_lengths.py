"""Lengths of outputs that are likely, of one model: running means by tenant."""

from __future__ import annotations

from collections import OrderedDict

from firelane.gateway.engines.recovery.in_flight import InFlight

FIRST_TOKENS = 128.0
"""Tokens expected of the first answer to a tenant."""
NEWEST = 0.1
"""Share of the newest output in a mean."""
MOST_TENANTS = 4096


class OutputLengths:
    def __init__(self) -> None:
        self._means: OrderedDict[str, float] = OrderedDict()

    def expected(self, flight: InFlight) -> float:
        """Tokens that the request is likely to draw still: 1 at least, no more than it may."""
        if flight.request.pooling is not None:
            return 0.0
        left = flight.request.sampling.max_tokens - len(flight.tokens)
        return max(1.0, min(self._means.get(flight.request.tenant, FIRST_TOKENS), left))

    def ended(self, flight: InFlight, output_tokens: int) -> None:
        """The request has ended after so many tokens."""
        tenant = flight.request.tenant
        before = self._means.pop(tenant, float(output_tokens))
        self._means[tenant] = before + NEWEST * (output_tokens - before)
        if len(self._means) > MOST_TENANTS:
            self._means.popitem(last=False)
