"""POST /completion and /infill: llama-server's own form of completions."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from dataclasses import replace

from firelane.api.completions import CompletionRequest
from firelane.api.decode import BodyDecoder
from firelane.gateway.apis.llama_server.answer import GenerationSettings, NativeAnswer
from firelane.gateway.apis.llama_server.format import NativeEncoder, NativeIdentity
from firelane.gateway.apis.llama_server.types import (
    HINTS,
    InfillRequest,
    NativeCompletionRequest,
    NativeRequest,
)
from firelane.gateway.bodies import Bodies
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.admission import Reservation
from firelane.gateway.requests.formats import LiveUsage
from firelane.gateway.requests.generation import GenerationRequest, output_options, start_generation
from firelane.gateway.requests.model_list import Models
from firelane.gateway.requests.models import ServedModel
from firelane.text.infill.prompt import TextWithGap
from firelane.text.prompt import Prompt, default_sampling
from firelane.text.schemas.constraints import grammar_of, schema_notes
from firelane.text.tokens.tokenizer import pack_prompts

FILE_NAME = "tmp"
"""The name of a file that has none."""
OPEN_END = 4
"""A part of the context that is kept free for an answer without a limit: 1 / OPEN_END."""


class NativeCompletionHandler:
    def __init__(self, models: Models, bodies: Bodies) -> None:
        self._models = models
        self._bodies = bodies
        self._completions: BodyDecoder[NativeCompletionRequest] = BodyDecoder(NativeCompletionRequest, HINTS)
        self._infills: BodyDecoder[InfillRequest] = BodyDecoder(InfillRequest, HINTS)

    def routes(self) -> Iterable[Route]:
        text = Doc(
            summary="Continue a text (llama-server's form)",
            body=NativeCompletionRequest,
            answer=NativeAnswer,
            stream=True,
        )
        gap = Doc(summary="Fill a gap in a text", body=InfillRequest, answer=NativeAnswer, stream=True)
        yield Route("POST", "/completion", self.complete, doc=text)
        yield Route("POST", "/infill", self.infill, doc=gap)

    async def complete(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._completions)
        model = await self._models.find_loaded(request.model, exchange, streams=request.stream)
        with model.reserve(exchange, 1) as reservation:
            fields = request.as_completion()
            (prompt,) = await model.prompts.completion(fields, model.text_room(exchange, "prompt"))
            text = prompt.text if prompt.text is not None else await _text_of(model, prompt)
            await self._start(model, reservation, request, fields, prompt, text)

    async def infill(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._infills)
        model = await self._models.find_loaded(request.model, exchange, streams=request.stream)
        infiller = model.prompts.infiller("input_suffix")
        with model.reserve(exchange, 1) as reservation:
            gap = TextWithGap(
                prefix=request.input_prefix,
                suffix=request.input_suffix,
                begun=request.prompt or "",
                files=[(file.filename or FILE_NAME, file.text) for file in request.input_extra or ()],
            )
            room = model.text_room(exchange, "input_prefix")
            made = await infiller.fitted(gap, room, _prompt_room(request, model.serving().max_model_len))
            (packed,) = await pack_prompts([made.ids])
            prompt = Prompt(packed, None)
            text, fields = await _text_of(model, prompt), request.as_completion()
            await self._start(model, reservation, request, fields, prompt, text, cut=made.is_cut)

    async def _start(
        self,
        model: ServedModel,
        reservation: Reservation,
        request: NativeRequest,
        fields: CompletionRequest,
        prompt: Prompt,
        text: str,
        *,
        cut: bool = False,
    ) -> None:
        self._bodies.ignored.note(reservation.exchange, schema_notes(fields))
        _set_limits(fields, model, prompt)
        live = LiveUsage()
        identity = NativeIdentity(
            model=fields.model or model.name,
            settings=_settings(request, fields, model),
            prompt=text,
            truncated=cut,
            fields=tuple(request.response_fields or ()),
            tokens=request.return_tokens is True,
        )
        options = output_options(
            fields, logprobs=fields.logprobs is not None, hide_output=request.n_predict == 0
        )
        generation = GenerationRequest(
            fields=fields,
            format=NativeEncoder(identity, live, model.tokenizer),
            options=replace(
                options,
                live_usage=live,
                token_ids=fields.stream is True or request.return_tokens is True,
                time_limit_s=max(0.0, request.t_max_predict_ms or 0.0) / 1e3,
            ),
            prompts=[prompt],
            grammar=grammar_of(fields),
            reports=(-1 if fields.logprobs is None else fields.logprobs, -1),
            fallback="llama.cpp",
        )
        await start_generation(model, reservation, generation)


def _prompt_room(request: NativeRequest, max_model_len: int) -> int:
    """Tokens of a prompt that leaves room for the answer: at least half of the context."""
    wanted = request.n_predict
    if wanted is None or wanted < 0:
        return max_model_len - max_model_len // OPEN_END
    return max_model_len - min(max(1, wanted), max_model_len // 2)


def _set_limits(fields: CompletionRequest, model: ServedModel, prompt: Prompt) -> None:
    """A limit of tokens that the context has room for, and a seed that can be told. Raises
    EngineDeadError."""
    room = max(1, model.serving().max_model_len - len(prompt))
    asked = fields.max_tokens
    fields.max_tokens = room if asked is None or asked < 0 else min(asked, room)
    fields.seed = secrets.randbits(32) if fields.seed is None else fields.seed


async def _text_of(model: ServedModel, prompt: Prompt) -> str:
    return await asyncio.to_thread(model.tokenizer.decode, prompt.ids.tolist())


def _settings(request: NativeRequest, fields: CompletionRequest, model: ServedModel) -> GenerationSettings:
    defaults = default_sampling(model.prompts.files.defaults, "llama.cpp")

    def value(given: float | None, name: str) -> float:
        return defaults[name] if given is None else given

    limit = -1 if request.n_predict is None else request.n_predict
    return GenerationSettings(
        n_ctx=model.serving().max_model_len,
        model=fields.model or model.name,
        n_predict=limit,
        max_tokens=limit,
        seed=fields.seed or 0,
        temperature=value(fields.temperature, "temperature"),
        top_k=int(value(fields.top_k, "top_k")),
        top_p=value(fields.top_p, "top_p"),
        min_p=value(fields.min_p, "min_p"),
        repeat_penalty=value(fields.repetition_penalty, "repetition_penalty"),
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        stop=fields.stop_strings(),
        ignore_eos=fields.ignore_eos is True,
        stream=fields.stream is True,
        n_probs=request.n_probs or 0,
        logit_bias=[[token, bias] for token, bias in (fields.logit_bias or {}).items()],
        grammar=fields.grammar or "",
    )
