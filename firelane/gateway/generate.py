"""Hops 2 to 4 of a request that generates text, whatever API it came by."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from firelane.api.sampling import SamplingFields, StreamOptions
from firelane.errors import EngineDeadError
from firelane.gateway.admission import cache_salt
from firelane.gateway.deltas import Splitter
from firelane.gateway.engine_link import EngineLink
from firelane.gateway.exchange import Exchange
from firelane.gateway.forms import Form, Identity, LiveUsage
from firelane.gateway.generation import Generation
from firelane.gateway.outlets import OutputOptions
from firelane.gateway.parts import Parts
from firelane.gateway.prompt import SEED_MASK, Prompt, pack_ids
from firelane.gateway.ticket import Ticket
from firelane.wire.frames import Grammar, NewRequest, Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A checked request on its way to the engine.

    fields: how to draw. reports: logprobs of output and prompt, as in Sampling. prompts: makes the prompts,
    of which there are num_prompts. splitter: makes what splits one choice's text, None where all of it is
    content.
    """

    exchange: Exchange
    fields: SamplingFields
    form: Form
    options: OutputOptions
    prompts: Callable[[], Awaitable[list[Prompt]]]
    num_prompts: int = 1
    reports: tuple[int, int] = (-1, -1)
    splitter: Callable[[], Splitter] | None = None
    grammar: Grammar | None = None

    @property
    def draws(self) -> int:
        """Answers to each prompt."""
        best_of = self.options.best_of
        return (self.fields.n or 1) if best_of is None else best_of.draws


class Generator:
    """Starts generations. What follows comes from frames."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def start(self, job: Job) -> None:
        """Admit, tokenise, choose the engine, submit. Raises RequestError and EngineDeadError."""
        parts, fields = self._parts, job.fields
        if parts.draining:
            raise EngineDeadError("the server is shutting down: try another one")
        model = parts.gate.check_model(job.exchange, fields.model)
        link, ready = parts.router.choose()
        sequences = job.num_prompts * job.draws
        if fields.options is not None and fields.options.reject_if_busy:
            parts.admission.check_free(sequences, ready.max_num_seqs)
        background = job.exchange.request.background
        ticket = parts.gate.admit(job.exchange, sequences, ready.max_num_seqs, background=background)
        try:
            prompts = [parts.prompts.truncated(fields, p, ready) for p in await job.prompts()]
            samplings = [parts.prompts.sampling(fields, p, ready, job.reports) for p in prompts]
            output_tokens = job.draws * sum(sampling.max_tokens for sampling in samplings)
            ticket.reserve(sum(len(prompt.ids) for prompt in prompts), output_tokens)
            parts.ledger.submitted(job.exchange, prompts)
            if job.exchange.gone:
                ticket.refuse()
            else:
                self._submit(job, model, link, ticket, list(zip(prompts, samplings, strict=True)))
        except BaseException:
            ticket.refuse()
            raise

    def _submit(
        self, job: Job, model: str, link: EngineLink, ticket: Ticket, work: list[tuple[Prompt, Sampling]]
    ) -> None:
        """Each prompt n times; choice i of a prompt draws with seed + i."""
        generation = Generation(job.form, job.options, link, ticket, self._parts, model)
        if not job.exchange.request.background:
            self._parts.admission.joined(generation, self._parts.now_s())
        tenant = job.exchange.request.tenant
        salt = cache_salt(tenant.salt, job.fields.cache_salt)
        for prompt, sampling in work:
            packed = pack_ids(prompt.ids)
            for i in range(job.draws):
                choice = generation.add_choice(prompt, job.splitter, first=i == 0)
                own = msgspec.structs.replace(sampling, seed=(sampling.seed + i) & SEED_MASK)
                self._parts.accounting.submitted(own.max_tokens)
                request = NewRequest(
                    id=choice.id,
                    prompt=packed,
                    sampling=own,
                    salt=salt,
                    grammar=job.grammar,
                    tenant=tenant.name,
                    weight=tenant.weight,
                    background=job.exchange.request.background,
                )
                link.submit(request, choice)


def new_identity(prefix: str, fields: SamplingFields, parts: Parts) -> Identity:
    """A new answer's name and time. A request that names no model gets the first that is served."""
    options = fields.stream_options or StreamOptions()
    usage = options.include_usage is True
    return Identity(
        id=prefix + secrets.token_hex(12),
        created=int(time.time()),
        model=fields.model or parts.served_names[0],
        fingerprint=parts.fingerprint,
        service_tier=None if fields.service_tier is None else "default",
        usage_in_chunks=usage,
        live_usage=LiveUsage() if usage and options.continuous_usage_stats else None,
        tokens_by_id=fields.return_tokens_as_token_ids is True,
    )


def output_options(
    fields: SamplingFields,
    *,
    logprobs: bool,
    echo: bool = False,
    hide_output: bool = False,
    kept_ids: frozenset[int] = frozenset(),
) -> OutputOptions:
    """kept_ids: special tokens that are text here, whatever the request says."""
    return OutputOptions(
        stream=bool(fields.stream),
        logprobs=logprobs,
        echo=echo,
        hide_output=hide_output,
        min_tokens=fields.min_tokens or 0,
        stop=tuple(fields.stop_strings()),
        keep_stop=fields.include_stop_str_in_output is True,
        kept_ids=None if fields.skip_special_tokens is False else kept_ids,
        token_ids=fields.return_token_ids is True,
        prompt_logprobs=fields.prompt_logprobs is not None,
    )
