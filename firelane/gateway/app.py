"""Routes: which function answers which path, and the path of a generation through hops 1 to 4."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from firelane.api.chat import ChatRequest
from firelane.api.completions import CompletionRequest
from firelane.api.decode import BodyDecoder
from firelane.api.errors import describe, envelope
from firelane.api.models import (
    DetokenizeRequest,
    DetokenizeResponse,
    ModelCard,
    ModelList,
    TokenizeRequest,
    TokenizeResponse,
)
from firelane.api.sampling import SamplingFields
from firelane.errors import EngineDeadError, QueueFullError, RequestError
from firelane.gateway.accounting import Accounting
from firelane.gateway.admission import Admission, Admitted, tenant_salt
from firelane.gateway.engine_link import EngineLink, LinkState
from firelane.gateway.forms import ChatForm, CompletionForm, Form, Identity
from firelane.gateway.http import RETRY_SOON, Exchange
from firelane.gateway.prompt import SEED_MASK, Prompt, PromptBuilder, pack_ids
from firelane.gateway.router import Router
from firelane.gateway.router import describe as describe_link
from firelane.gateway.stream import Generation, GenerationContext, OutputOptions
from firelane.telemetry.metrics import CONTENT_TYPE
from firelane.wire.frames import NewRequest, Sampling

log = logging.getLogger(__name__)
Respond = Callable[[Exchange], None]
PREFLIGHT = (
    b"access-control-allow-methods: GET, HEAD, POST, OPTIONS\r\n"
    b"access-control-allow-headers: authorization, content-type, *\r\n"  # * alone leaves authorization out
    b"access-control-max-age: 600\r\n"
)
"""What a browser asks before a page of another origin may send a request (Fetch Standard, 3.2)."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The hops that the routes use, made by the Gateway."""

    admission: Admission
    prompts: PromptBuilder
    router: Router
    link: EngineLink
    accounting: Accounting
    served_names: tuple[str, ...]
    version: str


class App:
    """Answers exchanges. `draining`: new work is refused while the old is finished."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.draining = False
        self.generations = 0
        self._created = int(time.time())
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = GenerationContext(
            parts.prompts.tokenizer, parts.accounting, asyncio.get_running_loop().time
        )
        self._completions: BodyDecoder[CompletionRequest] = BodyDecoder(CompletionRequest)
        self._chats: BodyDecoder[ChatRequest] = BodyDecoder(ChatRequest)
        self._tokenizes: BodyDecoder[TokenizeRequest] = BodyDecoder(TokenizeRequest)
        self._detokenizes: BodyDecoder[DetokenizeRequest] = BodyDecoder(DetokenizeRequest)
        self._routes: dict[bytes, tuple[bytes, Respond]] = {
            b"/v1/completions": (b"POST", self._spawning(self._completion)),
            b"/v1/chat/completions": (b"POST", self._spawning(self._chat)),
            b"/tokenize": (b"POST", self._spawning(self._tokenize)),
            b"/detokenize": (b"POST", self._spawning(self._detokenize)),
            b"/v1/models": (b"GET", self._models),
            b"/health": (b"GET", self._health),
            b"/version": (b"GET", self._version),
            b"/metrics": (b"GET", self._metrics),
        }

    def handle(self, exchange: Exchange) -> None:
        """Answer, or start to. Never raises."""
        request = exchange.request
        route = self._routes.get(request.path)
        if route is None:
            path = request.path[:200].decode("ascii", "replace")
            self._reply(exchange, 404, envelope(404, f"no such path: {path}", code="unknown_path"))
            return
        method, respond = route
        if request.method == b"OPTIONS":
            self._reply(exchange, 200, b"", PREFLIGHT)
            return
        if request.method != method and not (method == b"GET" and request.method == b"HEAD"):
            allow = b"GET, HEAD" if method == b"GET" else method
            body = envelope(405, f"use {allow.decode()} on this path", code="method_not_allowed")
            self._reply(exchange, 405, body, b"allow: %b\r\n" % allow)
            return
        try:
            respond(exchange)
        except Exception as error:
            self._fail(exchange, error)

    def _reply(self, exchange: Exchange, status: int, body: bytes, headers: bytes = b"") -> None:
        self._parts.accounting.responded(status)
        exchange.respond(status, body, headers=headers)

    def _fail(self, exchange: Exchange, error: Exception) -> None:
        if not isinstance(error, RequestError | EngineDeadError):
            log.error("unexpected_error path=%s", exchange.request.path, exc_info=error)
        if exchange.gone:
            return
        if exchange.started:
            exchange.cut()
            return
        status, body = describe(error)
        wait_s = error.retry_after_s if isinstance(error, QueueFullError) else 1
        headers = RETRY_SOON if status == 503 else b"retry-after: %d\r\n" % wait_s if status == 429 else b""
        self._reply(exchange, status, body, headers)

    def _spawning(self, work: Callable[[Exchange], Coroutine[Any, Any, None]]) -> Respond:
        """Run `work` as a task, which ends with its answer, or when the request is with the engine."""

        async def guarded(exchange: Exchange) -> None:
            try:
                await work(exchange)
            except Exception as error:
                self._fail(exchange, error)

        def respond(exchange: Exchange) -> None:
            task = asyncio.get_running_loop().create_task(guarded(exchange))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return respond

    # Generations: hops 1 to 4.

    async def _completion(self, exchange: Exchange) -> None:
        request = self._completions.decode(exchange.request.body)
        request.check()
        options = _options(
            request,
            logprobs=request.logprobs is not None,
            echo=bool(request.echo),
            hide_output=request.max_tokens == 0,
        )
        top = -1 if request.logprobs is None else request.logprobs
        reports = (top, top if request.echo else -1)
        form = CompletionForm(self._identity("cmpl-", request), self._context.tokenizer)
        start = _Start(exchange, request, form, options, reports)
        await self._generate(start, len(request.prompts()), lambda: self._parts.prompts.completion(request))

    async def _chat(self, exchange: Exchange) -> None:
        request = self._chats.decode(exchange.request.body)
        request.check()
        options = _options(request, logprobs=bool(request.logprobs))
        reports = (request.top_logprobs or 0 if request.logprobs else -1, -1)
        form = ChatForm(self._identity("chatcmpl-", request), self._context.tokenizer)
        start = _Start(exchange, request, form, options, reports)

        async def prompts() -> list[Prompt]:
            return [await self._parts.prompts.chat(request)]

        await self._generate(start, 1, prompts)

    def _identity(self, prefix: str, fields: SamplingFields) -> Identity:
        model = fields.model or self._parts.served_names[0]
        usage = bool(fields.stream_options and fields.stream_options.include_usage)
        return Identity(prefix + secrets.token_hex(12), int(time.time()), model, usage)

    async def _generate(
        self, start: _Start, num_prompts: int, build: Callable[[], Awaitable[list[Prompt]]]
    ) -> None:
        """Admit, tokenise, choose the engine, submit. What follows comes from frames."""
        fields, exchange = start.fields, start.exchange
        self._refuse_when_draining()
        self._parts.admission.check_model(fields.model)
        link, ready = self._parts.router.choose()
        salt = tenant_salt(exchange.request.headers, fields.cache_salt)
        admitted = self._parts.admission.admit(num_prompts * (fields.n or 1), ready.max_num_seqs, salt)
        try:
            prompts = await build()
            samplings = [self._parts.prompts.sampling(fields, p, ready, start.reports) for p in prompts]
            if exchange.gone:
                admitted.release()
            else:
                self._submit(start, link, admitted, list(zip(prompts, samplings, strict=True)))
        except BaseException:
            admitted.release()
            raise

    def _submit(
        self, start: _Start, link: EngineLink, admitted: Admitted, work: list[tuple[Prompt, Sampling]]
    ) -> None:
        """Each prompt n times; choice i of a prompt draws with seed + i."""
        generation = Generation(
            exchange=start.exchange,
            form=start.form,
            options=start.options,
            link=link,
            admitted=admitted,
            context=self._context,
        )
        for prompt, sampling in work:
            packed = pack_ids(prompt.ids)
            for i in range(start.fields.n or 1):
                choice = generation.add_choice(prompt, first=i == 0)
                own = msgspec.structs.replace(sampling, seed=(sampling.seed + i) & SEED_MASK)
                salt = admitted.tenant_salt
                self._parts.accounting.submitted(own.max_tokens)
                link.submit(NewRequest(id=choice.id, prompt=packed, sampling=own, salt=salt), choice)

    def _refuse_when_draining(self) -> None:
        if self.draining:
            raise EngineDeadError("the server is shutting down: try another one")

    # The small routes.

    def _models(self, exchange: Exchange) -> None:
        names = self._parts.served_names
        ready = self._parts.link.ready
        length = ready.max_model_len if ready is not None else None
        cards = [ModelCard(id=n, created=self._created, root=names[0], max_model_len=length) for n in names]
        self._reply(exchange, 200, msgspec.json.encode(ModelList(data=cards)))

    def _health(self, exchange: Exchange) -> None:
        link = self._parts.link
        if link.state is LinkState.READY and not self.draining:
            self._reply(exchange, 200, b'{"status":"ready"}')
            return
        state = "draining" if self.draining else link.state.value
        body = {"status": state, "reason": "shutting down" if self.draining else describe_link(link)}
        self._reply(exchange, 503, msgspec.json.encode(body), RETRY_SOON)

    def _version(self, exchange: Exchange) -> None:
        self._reply(exchange, 200, msgspec.json.encode({"version": self._parts.version}))

    def _metrics(self, exchange: Exchange) -> None:
        exchange.respond(200, self._parts.accounting.registry.render(), content_type=CONTENT_TYPE)

    async def _tokenize(self, exchange: Exchange) -> None:
        request = self._tokenizes.decode(exchange.request.body)
        self._parts.admission.check_model(request.model)
        encode = self._context.tokenizer.encode
        ids = await asyncio.to_thread(encode, request.prompt, add_special_tokens=request.add_special_tokens)
        ready = self._parts.link.ready
        length = ready.max_model_len if ready is not None else None
        answer = TokenizeResponse(count=len(ids), max_model_len=length, tokens=ids)
        self._reply(exchange, 200, msgspec.json.encode(answer))

    async def _detokenize(self, exchange: Exchange) -> None:
        request = self._detokenizes.decode(exchange.request.body)
        self._parts.admission.check_model(request.model)
        text = await asyncio.to_thread(self._context.tokenizer.decode, request.tokens)
        self._reply(exchange, 200, msgspec.json.encode(DetokenizeResponse(prompt=text)))

    async def cancel_tasks(self) -> None:
        """End what has not reached the engine yet."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _Start:
    """A decoded request on its way to the engine."""

    exchange: Exchange
    fields: SamplingFields
    form: Form
    options: OutputOptions
    reports: tuple[int, int]


def _options(
    fields: SamplingFields, *, logprobs: bool, echo: bool = False, hide_output: bool = False
) -> OutputOptions:
    return OutputOptions(
        stream=bool(fields.stream),
        include_usage=bool(fields.stream_options and fields.stream_options.include_usage),
        logprobs=logprobs,
        echo=echo,
        hide_output=hide_output,
        min_tokens=fields.min_tokens or 0,
        stop=tuple(fields.stop_strings()),
    )
