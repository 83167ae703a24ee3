"""Paths by which SGLang is steered and watched: /model_info, /server_info, /flush_cache, /abort_request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from firelane.api.decode import BodyDecoder
from firelane.api.models import ModelQuery
from firelane.api.stored.paging import read_query
from firelane.errors import RequestError
from firelane.gateway.engines.forgetting import forget_all
from firelane.gateway.http.exchange import Doc, Exchange, HttpError, Route
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.services import Services

TIMEOUT_S = 60.0
"""Seconds that engines may take to answer."""
ABORTED = 409
FLUSHED = b"Cache flushed.\n"


class SglangModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """model_path, tokenizer_path: the served name, not a place on the server's drive. is_generation: the
    model has a head. preferred_sampling_params: what its author advises.
    """

    model_path: str
    tokenizer_path: str
    is_generation: bool
    preferred_sampling_params: dict[str, float]
    model_type: str
    weight_version: str
    has_image_understanding: bool = False
    has_audio_understanding: bool = False


class SglangState(msgspec.Struct, frozen=True, kw_only=True):
    """Sequences in the engines, and tokens of the KV cache that are taken."""

    num_running_reqs: int
    num_waiting_reqs: int
    num_used_tokens: int


class SglangServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """All that follows `version` is null until an engine has once been ready. internal_states: one entry, of
    all engines of the model together.
    """

    model_path: str
    tokenizer_path: str
    served_model_name: str
    status: str
    version: str
    context_length: int | None
    max_running_requests: int | None
    max_total_num_tokens: int | None
    page_size: int | None
    kv_cache_dtype: str | None
    quantization: str | None
    internal_states: list[SglangState]


class AbortRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """rid: the request's `x-request-id`. abort_all: all requests of all models."""

    rid: Annotated[str, Meta(max_length=128)] = ""
    abort_all: bool = False
    abort_message: Annotated[str, Meta(max_length=400)] | None = None

    def check(self) -> None:
        """Raises RequestError."""
        if not self.rid and not self.abort_all:
            raise RequestError(
                "`rid` is missing: give a request's x-request-id, or `abort_all`",
                param="rid",
                code="missing_parameter",
            )


class AbortReport(msgspec.Struct, frozen=True, kw_only=True):
    """aborted: requests that have been ended."""

    aborted: int


class SglangHandler:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._models = services.models
        self._bodies = services.bodies
        self._replies = services.replies
        self._aborts: BodyDecoder[AbortRequest] = BodyDecoder(AbortRequest)

    def routes(self) -> Iterable[Route]:
        info = Doc(summary="A model (SGLang's form)", answer=SglangModelInfo, query=ModelQuery)
        server = Doc(
            summary="A model and its engines (SGLang's form)", answer=SglangServerInfo, query=ModelQuery
        )
        flush = Doc(summary="Erase all cached prefixes", answer_type="text/plain")
        abort = Doc(summary="End running requests", body=AbortRequest, answer=AbortReport)
        for prefix in ("/", "/get_"):
            yield Route("GET", f"{prefix}model_info", self.model_info, doc=info)
            yield Route("GET", f"{prefix}server_info", self.server_info, doc=server)
        yield Route("POST", "/flush_cache", self.flush, admin=True, doc=flush)
        yield Route("POST", "/abort_request", self.abort, admin=True, doc=abort)

    def model_info(self, exchange: Exchange) -> None:
        model = self._asked(exchange)
        sizes, files = model.engines.figures.sizes, model.prompts.files
        report = SglangModelInfo(
            model_path=model.name,
            tokenizer_path=model.name,
            is_generation=sizes is None or sizes.can_generate,
            preferred_sampling_params=files.defaults,
            model_type=files.model_type,
            weight_version="default",
            has_image_understanding=sizes is not None and sizes.images is not None,
        )
        self._replies.json(exchange, report)

    async def server_info(self, exchange: Exchange) -> None:
        await self._services.refresh()
        model = self._asked(exchange)
        ready, stats = model.engines.ready, model.engines.figures.stats
        used = 0 if ready is None else stats.kv_used_blocks * ready.block_size
        state = SglangState(
            num_running_reqs=stats.running, num_waiting_reqs=stats.waiting, num_used_tokens=used
        )
        report = SglangServerInfo(
            model_path=model.name,
            tokenizer_path=model.name,
            served_model_name=model.name,
            status=model.status,
            version=self._services.version,
            context_length=ready and ready.max_model_len,
            max_running_requests=ready and ready.max_num_seqs,
            max_total_num_tokens=ready and ready.num_blocks * ready.block_size,
            page_size=ready and ready.block_size,
            kv_cache_dtype=ready and ready.kv_cache_dtype,
            quantization=(ready.quantization or None) if ready else None,
            internal_states=[state],
        )
        self._replies.json(exchange, report)

    async def flush(self, exchange: Exchange) -> None:
        read_query(exchange.request.query, ("timeout",))
        await forget_all(self._services.engines(), self._services.tenants.names(), TIMEOUT_S)
        self._replies.send(exchange, FLUSHED, content_type=b"text/plain; charset=utf-8")

    async def abort(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._aborts)
        why = request.abort_message or "the request was ended by the server's administrator"
        error = HttpError(ABORTED, why, code="aborted")
        name = None if request.abort_all else request.rid
        aborted = sum(model.running.abort(name, error) for model in self._models)
        self._replies.json(exchange, AbortReport(aborted=aborted))

    def _asked(self, exchange: Exchange) -> ServedModel:
        name = read_query(exchange.request.query, ("model",)).get("model")
        return self._models.find(name, exchange.request.tenant)
