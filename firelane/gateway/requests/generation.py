"""Requests that generate text, whatever API they came by: from rendered prompts to the answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from firelane.api.sampling import KvTransferParams, SamplingFields, StreamOptions
from firelane.api.usage import CachedByTier, CompletionTokensDetails, PromptTokensDetails, Usage
from firelane.errors import RequestError
from firelane.gateway.http.exchange import NOBODY, Request
from firelane.gateway.requests.admission import Reservation, cache_salt
from firelane.gateway.requests.choice import Choice
from firelane.gateway.requests.formats import ChoiceResult, LiveUsage, ResponseEncoder, ResponseIdentity
from firelane.gateway.requests.models import ServedModel, adapted_salt
from firelane.gateway.requests.run import (
    SEQUENCE_COST,
    NewSequence,
    RequestRun,
    SequenceStats,
    TimeSlice,
    times_of,
)
from firelane.gateway.requests.sinks import EventSink, OutputOptions, ResponseSink, ResultSink, StoringSink
from firelane.gateway.urgency import check_in_time, left_ms
from firelane.text.prompt import FALLBACKS, SEED_MASK, Fallback, Prompt
from firelane.text.tokens.tokenizer import Tokenizer
from firelane.text.tools.stream_buffer import OutputParser
from firelane.wire.frames import Grammar, NewRequest, Sampling

SAMPLING_DEFAULTS = b"x-sampling-defaults"
"""Header of requests whose answers a person reads, as those of the page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """A checked, admitted and tokenised request. draws: answers to each prompt. reports: logprobs of output
    and prompt, as in Sampling. splitter: makes what splits one choice's text, None where all is content.
    fallback: of sampling values that the request leaves open, None: as its header says. prediction: as in
    NewRequest.
    """

    fields: SamplingFields
    format: ResponseEncoder
    options: OutputOptions
    prompts: list[Prompt]
    draws: int = 1
    reports: tuple[int, int] = (-1, -1)
    splitter: Callable[[], OutputParser] | None = None
    grammar: Grammar | None = None
    fallback: Fallback | None = None
    prediction: bytes = b""


async def start_generation(model: ServedModel, reservation: Reservation, request: GenerationRequest) -> None:
    """Charge the tenant for the prompts' length, and submit them; what follows comes from frames. Raises
    RequestError and EngineDeadError.
    """
    fallback = request.fallback or fallback_of(reservation.exchange.request.headers)
    work = await _checked(model, request, fallback)
    prompts = [prompt for prompt, _ in work]
    output_tokens = request.draws * sum(sampling.max_tokens for _, sampling in work)
    check_in_time(reservation.exchange.request, model.metrics)
    reservation.charge(sum(map(len, prompts)), output_tokens)
    model.admission.usage.submitted(reservation.exchange, prompts)
    if not reservation.exchange.gone:
        run = GenerationRun(model, reservation, request)
        await run.start(run.choices(model, request, work))


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
    time_slice, work = TimeSlice(), list[tuple[Prompt, Sampling]]()
    for whole in request.prompts:
        prompt = build.truncated(fields, whole, ready)
        work.append((prompt, build.sampling(fields, prompt, ready, request.reports, fallback)))
        await time_slice.take(SEQUENCE_COST + len(prompt))
    return work


class GenerationRun(RequestRun):
    """A request that generates text, with the engine: makes its choices, and answers in one piece or ends the
    stream.
    """

    def __init__(self, model: ServedModel, reservation: Reservation, request: GenerationRequest) -> None:
        total = len(request.prompts) * request.draws
        super().__init__(model, reservation, total, _session(reservation.exchange.request, request.fields))
        self._format, self._options = request.format, request.options
        self._results: list[ChoiceResult] = []
        live = request.options.live_usage
        if live is not None:
            live.read = partial(usage_of, self.sequences)
            live.times = partial(times_of, self.sequences, reservation.arrived_s, model.admission.usage.now_s)

    def choices(
        self, model: ServedModel, request: GenerationRequest, work: Iterable[tuple[Prompt, Sampling]]
    ) -> Iterator[NewSequence]:
        """Each prompt `draws` times; choice i of a prompt draws with seed + i."""
        asked = self.exchange.request
        adapter = model.asked_adapter(request.fields.model, request.fields.lora_path, asked.tenant)
        salt = adapted_salt(cache_salt(asked.tenant.salt, request.fields.cache_salt), adapter)
        client = NOBODY if request.grammar is None else asked.client
        transfer = request.fields.kv_transfer_params or KvTransferParams()
        pages_at, pages_address = transfer.source
        has_limit = (request.fields.max_tokens or 0) > 0
        for prompt, sampling in work:
            for i in range(request.draws):
                own = msgspec.structs.replace(sampling, seed=(sampling.seed + i) & SEED_MASK)
                self.metrics.submitted(own.max_tokens)
                stats = SequenceStats(model.engines.next_id(), len(prompt), first_of_prompt=i == 0)
                new = NewRequest(
                    id=stats.id,
                    prompt=prompt.packed,
                    sampling=own,
                    salt=salt,
                    grammar=request.grammar,
                    tenant=asked.tenant.name,
                    weight=asked.tenant.weight,
                    background=asked.background,
                    client=client,
                    pages_at=pages_at,
                    pages_address=pages_address,
                    tells_pages=transfer.do_remote_decode is True,
                    most_drafted=request.fields.most_drafted,
                    prediction=request.prediction,
                    priority=asked.priority,
                    deadline_ms=left_ms(asked.due_s),
                    due_tokens=own.max_tokens if has_limit else 1,
                    adapter=adapter,
                    images=prompt.images,
                )
                splitter = None if request.splitter is None else request.splitter()
                sink = self._sink(stats, model.tokenizer)
                yield stats, Choice(stats, self, prompt, sink, splitter, self._options, model.tokenizer), new

    def _sink(self, stats: SequenceStats, tokenizer: Tokenizer) -> ResponseSink:
        """The sink of the next choice."""
        index, options = len(self.sequences), self._options
        if options.stream:
            token_text = tokenizer.token_text if options.logprobs else None
            events = EventSink(index, self.exchange, self._format, token_text, options.media)
            return events if options.on_answer is None else StoringSink(events, self._result_sink(index, 0))
        return self._result_sink(index, stats.prompt_tokens if options.echo and options.logprobs else 0)

    def _result_sink(self, index: int, echoed: int) -> ResultSink:
        self._results.append(ChoiceResult(index, echoed_tokens=echoed))
        return ResultSink(self._results[-1])

    def complete(self) -> None:
        usage, options = usage_of(self.sequences), self._options
        if not options.stream:
            body = self._answer(usage)
            if options.on_answer is not None:
                options.on_answer(body)
            self.exchange.respond(200, body)
            return
        if options.on_answer is not None:
            options.on_answer(self._answer(usage))
        self.exchange.send(self._format.closing(usage))
        self.exchange.end()

    def _answer(self, usage: Usage) -> bytes:
        """The answer in one piece."""
        options = self._options
        results = self._results if options.best_of is None else options.best_of.choose(self._results)
        with_logprobs = options.logprobs and not options.hide_logprobs
        return self._format.response(results, usage, with_logprobs)

    def failure(self, body: bytes) -> bytes:
        return self._format.failure(body)


def _session(asked: Request, fields: SamplingFields) -> bytes:
    """By its header, else by OpenAI's field."""
    key = fields.prompt_cache_key
    field = key.encode(errors="surrogatepass") if isinstance(key, str) else b""
    return asked.headers.get(b"x-session-affinity", b"") or field


def usage_of(sequences: Sequence[SequenceStats]) -> Usage:
    """The usage so far."""
    prompt = sum(one.prompt_tokens for one in sequences if one.first_of_prompt)
    completion = sum(one.generated for one in sequences)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=_prompt_details([one for one in sequences if one.first_of_prompt]),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=sum(one.reasoning_tokens for one in sequences),
            accepted_prediction_tokens=sum(one.accepted_drafts for one in sequences),
            rejected_prediction_tokens=sum(one.rejected_drafts for one in sequences),
        ),
    )


def _prompt_details(sequences: Sequence[SequenceStats]) -> PromptTokensDetails:
    """Details of the prompts, from the first sequence of each."""
    cached = sum(one.cached_tokens for one in sequences)
    host = sum(one.host_tokens for one in sequences)
    disk = sum(one.disk_tokens for one in sequences)
    peer = sum(one.peer_tokens for one in sequences)
    if not host + disk + peer:
        return PromptTokensDetails(cached_tokens=cached)
    by_tier = CachedByTier(device=cached - host - disk - peer, host=host, disk=disk, peer=peer)
    return PromptTokensDetails(cached_tokens=cached, cached_tokens_by_tier=by_tier)


def new_id(prefix: str) -> str:
    """A new answer's name, which nobody guesses."""
    return prefix + secrets.token_hex(12)


def new_identity(answer_id: str, fields: SamplingFields, model: ServedModel) -> ResponseIdentity:
    """Fields that all of an answer repeats. A request that names no model gets the first that is served."""
    options = fields.stream_options or StreamOptions()
    usage = options.include_usage is True
    return ResponseIdentity(
        id=answer_id,
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
