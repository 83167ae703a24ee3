"""Requests that generate text, whatever API they came by: from rendered prompts to the answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from firelane.api.sampling import KvTransferParams, SamplingFields, StreamOptions
from firelane.api.usage import CachedByTier, CompletionTokensDetails, PromptTokensDetails, Usage
from firelane.errors import RequestError
from firelane.gateway.http.peer import NOBODY
from firelane.gateway.requests.admission import Reservation, cache_salt
from firelane.gateway.requests.choice import Choice
from firelane.gateway.requests.formats import ChoiceResult, LiveUsage, ResponseEncoder, ResponseIdentity
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.requests.run import RequestRun
from firelane.gateway.requests.sinks import EventSink, OutputOptions, ResponseSink, ResultSink
from firelane.gateway.requests.turn import SEQUENCE_COST, TimeSlice
from firelane.text.deltas import Splitter
from firelane.text.prompt import Prompt
from firelane.text.sampling import FALLBACKS, SEED_MASK, Fallback
from firelane.wire.frames import Grammar, NewRequest, Sampling

SAMPLING_DEFAULTS = b"x-sampling-defaults"
"""Header of requests whose answers a person reads, as those of the page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """A checked, admitted and tokenised request. draws: answers to each prompt. reports: logprobs of output
    and prompt, as in Sampling. splitter: makes what splits one choice's text, None where all is content.
    fallback: of sampling values that the request leaves open, None: as its header says.
    """

    fields: SamplingFields
    format: ResponseEncoder
    options: OutputOptions
    prompts: list[Prompt]
    draws: int = 1
    reports: tuple[int, int] = (-1, -1)
    splitter: Callable[[], Splitter] | None = None
    grammar: Grammar | None = None
    fallback: Fallback | None = None


async def start_generation(model: ServedModel, reservation: Reservation, request: GenerationRequest) -> None:
    """Charge the tenant for the prompts' length, and submit them; what follows comes from frames. Raises
    RequestError and EngineDeadError.
    """
    fallback = request.fallback or fallback_of(reservation.exchange.request.headers)
    work = await _checked(model, request, fallback)
    prompts = [prompt for prompt, _ in work]
    output_tokens = request.draws * sum(sampling.max_tokens for _, sampling in work)
    reservation.charge(sum(map(len, prompts)), output_tokens)
    model.admission.usage.submitted(reservation.exchange, prompts)
    if not reservation.exchange.gone:
        await _Starter(model, reservation, request).start(work)


def fallback_of(headers: Mapping[bytes, bytes]) -> Fallback:
    """Whose sampling values hold where neither the request nor the model's author names one. Raises
    RequestError."""
    given = headers.get(SAMPLING_DEFAULTS, b"vllm").decode("latin-1")
    for known in FALLBACKS:
        if given == known:
            return known
    header = SAMPLING_DEFAULTS.decode()
    raise RequestError(
        f"the header {header} is '{given[:40]}': use one of {', '.join(FALLBACKS)}", param=header
    )


async def _checked(
    model: ServedModel, request: GenerationRequest, fallback: Fallback
) -> list[tuple[Prompt, Sampling]]:
    """The prompts, cut where the request wants that, each with what the engine is told about it."""
    ready, build, fields = model.serving(), model.prompts, request.fields
    turn, work = TimeSlice(), list[tuple[Prompt, Sampling]]()
    for whole in request.prompts:
        prompt = build.truncated(fields, whole, ready)
        work.append((prompt, build.sampling(fields, prompt, ready, request.reports, fallback)))
        await turn.take(SEQUENCE_COST + len(prompt))
    return work


class _Starter:
    """Makes the choices of a request."""

    def __init__(self, model: ServedModel, reservation: Reservation, request: GenerationRequest) -> None:
        self._model = model
        self._request = request
        self._asked = reservation.exchange.request
        self._answer = GenerationAnswer(request.format, request.options)
        total = len(request.prompts) * request.draws
        self._run: RequestRun[Choice] = RequestRun(model, reservation, self._answer, total, self._session())

    async def start(self, work: Sequence[tuple[Prompt, Sampling]]) -> None:
        live = self._request.options.live_usage
        if live is not None:
            live.read = lambda: usage_of(self._run.sequences)
            live.times = self._run.times
        await self._run.start(self._choices(work))

    def _choices(self, work: Sequence[tuple[Prompt, Sampling]]) -> Iterator[tuple[Choice, NewRequest]]:
        """Each prompt `draws` times; choice i of a prompt draws with seed + i."""
        tenant = self._asked.tenant
        salt = cache_salt(tenant.salt, self._request.fields.cache_salt)
        grammar = self._request.grammar
        client = NOBODY if grammar is None else self._asked.client
        transfer = self._request.fields.kv_transfer_params or KvTransferParams()
        pages_at, pages_address = transfer.source
        for prompt, sampling in work:
            for i in range(self._request.draws):
                choice = self._choice(prompt, first=i == 0)
                own = msgspec.structs.replace(sampling, seed=(sampling.seed + i) & SEED_MASK)
                self._model.metrics.submitted(own.max_tokens)
                request = NewRequest(
                    id=choice.id,
                    prompt=prompt.packed,
                    sampling=own,
                    salt=salt,
                    grammar=grammar,
                    tenant=tenant.name,
                    weight=tenant.weight,
                    background=self._asked.background,
                    client=client,
                    pages_at=pages_at,
                    pages_address=pages_address,
                    tells_pages=transfer.do_remote_decode is True,
                )
                yield choice, request

    def _session(self) -> bytes:
        """By its header, else by OpenAI's field."""
        key = self._request.fields.prompt_cache_key
        field = key.encode(errors="surrogatepass") if isinstance(key, str) else b""
        return self._asked.headers.get(b"x-session-affinity", b"") or field

    def _choice(self, prompt: Prompt, *, first: bool) -> Choice:
        request, model, index = self._request, self._model, len(self._run.sequences)
        if request.options.stream:
            token_text = model.tokenizer.token_text if request.options.logprobs else None
            sink: ResponseSink = EventSink(
                index, self._run.exchange, request.format, token_text, request.options.media
            )
        else:
            sink = ResultSink(self._answer.add_result())
        splitter = None if request.splitter is None else request.splitter()
        choice = Choice(
            model.engines.next_id(), self._run, prompt, sink, splitter, request.options, model.tokenizer
        )
        choice.first_of_prompt = first
        return choice


class GenerationAnswer:
    """The Answer in one piece, or the end of a stream."""

    def __init__(self, format: ResponseEncoder, options: OutputOptions) -> None:
        self._format = format
        self._options = options
        self._results: list[ChoiceResult] = []

    def add_result(self) -> ChoiceResult:
        self._results.append(ChoiceResult(len(self._results)))
        return self._results[-1]

    def complete(self, run: RequestRun[Choice]) -> None:
        usage = usage_of(run.sequences)
        if self._options.stream:
            run.exchange.send(self._format.closing(usage))
            run.exchange.end()
            return
        with_logprobs = self._options.logprobs and not self._options.hide_logprobs
        body = self._format.response(self._chosen(run.sequences), usage, with_logprobs)
        run.exchange.respond(200, body)

    def failure(self, body: bytes) -> bytes:
        return self._format.failure(body)

    def _chosen(self, choices: list[Choice]) -> list[ChoiceResult]:
        """The results that the client gets, with what it wants to know of their prompts."""
        options = self._options
        for result, choice in zip(self._results, choices, strict=True):
            result.pages = choice.pages
            if options.prompt_logprobs:
                result.prompt_reports = choice.prompt_reports
            if options.echo and options.logprobs:
                result.echoed_tokens = choice.prompt_tokens
        return self._results if options.best_of is None else options.best_of.choose(self._results)


def usage_of(choices: Sequence[Choice]) -> Usage:
    """The usage so far."""
    prompt = sum(choice.prompt_tokens for choice in choices if choice.first_of_prompt)
    completion = sum(choice.generated for choice in choices)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=_prompt_details([choice for choice in choices if choice.first_of_prompt]),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=sum(choice.reasoning_tokens for choice in choices)
        ),
    )


def _prompt_details(choices: Sequence[Choice]) -> PromptTokensDetails:
    """Details of the prompts, from the first choice of each."""
    cached = sum(choice.cached_tokens for choice in choices)
    host = sum(choice.host_tokens for choice in choices)
    disk = sum(choice.disk_tokens for choice in choices)
    peer = sum(choice.peer_tokens for choice in choices)
    if not host + disk + peer:
        return PromptTokensDetails(cached_tokens=cached)
    by_tier = CachedByTier(device=cached - host - disk - peer, host=host, disk=disk, peer=peer)
    return PromptTokensDetails(cached_tokens=cached, cached_tokens_by_tier=by_tier)


def new_identity(prefix: str, fields: SamplingFields, model: ServedModel) -> ResponseIdentity:
    """A new answer's name and time. A request that names no model gets the first that is served."""
    options = fields.stream_options or StreamOptions()
    usage = options.include_usage is True
    return ResponseIdentity(
        id=prefix + secrets.token_hex(12),
        created=int(time.time()),
        model=fields.model or model.name,
        fingerprint=model.fingerprint,
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
    visible_special_ids: frozenset[int] = frozenset(),
) -> OutputOptions:
    """visible_special_ids: special tokens that are text here, whatever the request says."""
    return OutputOptions(
        stream=bool(fields.stream),
        logprobs=logprobs,
        echo=echo,
        hide_output=hide_output,
        min_tokens=fields.min_tokens or 0,
        stop=tuple(fields.stop_strings()),
        keep_stop=fields.include_stop_str_in_output is True,
        visible_special_ids=None if fields.skip_special_tokens is False else visible_special_ids,
        token_ids=fields.return_token_ids is True,
        prompt_logprobs=fields.prompt_logprobs is not None,
    )
