"""What a request holds from its admission to its end."""

from __future__ import annotations

from firelane.errors import ModelNotServedError, RateLimitError
from firelane.gateway.admission import Admission, Admitted
from firelane.gateway.exchange import Exchange
from firelane.gateway.ledger import Ledger, Outcome
from firelane.gateway.tenants.quota import FREE_GRANT, Grant
from firelane.gateway.tenants.registry import Tenants


class Ticket:
    """Room in the queue and a part of its tenant's quota. Ends once: `refuse` or `close`, whichever comes
    first.
    """

    __slots__ = ("_admitted", "_grant", "_ledger", "_open", "arrived_s", "exchange")

    def __init__(
        self, exchange: Exchange, grant: Grant, admitted: Admitted, ledger: Ledger, arrived_s: float
    ) -> None:
        self.exchange = exchange
        self.arrived_s = arrived_s
        self._grant = grant
        self._admitted = admitted
        self._ledger = ledger
        self._open = True

    def reserve(self, prompt_tokens: int, output_tokens: int) -> None:
        """Hold so many tokens of the quota, at most, and tell the client what is left. Raises
        RateLimitError.
        """
        try:
            self._grant.reserve(prompt_tokens, output_tokens)
        finally:
            self.exchange.extra_headers += self._grant.headers()

    def refuse(self) -> None:
        """It did not start: the tenant has made a request, but used no tokens."""
        if self._open:
            self._open = False
            self._admitted.release()
            self._grant.settle(0)

    def close(self, outcome: Outcome) -> None:
        if self._open:
            self._open = False
            self._admitted.release()
            self._grant.settle(outcome.prompt_tokens + outcome.generated_tokens)
            self._ledger.ended(self.exchange, outcome)


class Gate:
    """Hop 2 as a whole: the tenant's quota, then room in the queue."""

    def __init__(
        self, tenants: Tenants, admission: Admission, ledger: Ledger, aliases: dict[str, str]
    ) -> None:
        self._tenants = tenants
        self._aliases = aliases
        self._admission = admission
        self._ledger = ledger

    def check_model(self, exchange: Exchange, name: str | None) -> str:
        """The served name that counts for the request, an alias's own. Raises ModelNotServedError, also where
        its tenant has no access.
        """
        self._admission.check_model(name)
        asked = name or self._admission.first_name
        model = self._aliases.get(asked, asked)
        tenant = exchange.request.tenant
        if not (tenant.may_use(asked) or tenant.may_use(model)):
            raise ModelNotServedError(
                f"The model `{asked[:200]}` does not exist or you do not have access to it: see /v1/models",
                param="model",
                code="model_not_found",
            )
        return model

    def admit(self, exchange: Exchange, sequences: int, max_num_seqs: int, *, background: bool) -> Ticket:
        """Raises RateLimitError, QueueFullError and RequestError. Background work, which takes only what is
        idle, counts for no rate limit.
        """
        arrived_s = self._ledger.now_s()
        tenant = exchange.request.tenant
        try:
            grant = FREE_GRANT if background else self._tenants.admit(tenant)
        except RateLimitError:
            exchange.extra_headers += self._tenants.limits(tenant)
            raise
        try:
            if background:
                admitted = self._admission.admit_background(sequences, max_num_seqs)
            else:
                admitted = self._admission.admit(sequences, max_num_seqs, tenant.name)
        except BaseException:
            grant.settle(0)
            raise
        return Ticket(exchange, grant, admitted, self._ledger, arrived_s)
