"""POST /v1/chat/completions, and its answers: `chat.completion` and `chat.completion.chunk` objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import UNSET

from firelane.api.chat import CHAT_HINTS, ChatRequest
from firelane.api.chat_answer import (
    ChatChoice,
    ChatLogprob,
    ChatLogprobs,
    ChatMessage,
    ChatResponse,
    CustomCall,
    FunctionCall,
    MessageToolCall,
    TopLogprob,
)
from firelane.api.decode import BodyDecoder
from firelane.api.usage import Usage
from firelane.gateway.apis.chat.reports import prompt_logprobs
from firelane.gateway.bodies import Bodies
from firelane.gateway.conversations.chat_store import ChatStore
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.formats import (
    ChoiceResult,
    EventFrame,
    ResponseIdentity,
    TokenReport,
    encode_json,
    error_event,
    transfer_params,
)
from firelane.gateway.requests.generation import (
    GenerationRequest,
    new_id,
    new_identity,
    output_options,
    start_generation,
)
from firelane.gateway.requests.model_list import Models
from firelane.gateway.streams.kept_streams import KeptStreams
from firelane.text.deltas import CallStart, Content, Delta, Reasoning, ToolCall
from firelane.text.tokens.tokenizer import Tokenizer


class ChatHandler:
    def __init__(self, models: Models, bodies: Bodies, streams: KeptStreams, store: ChatStore) -> None:
        self._models = models
        self._bodies = bodies
        self._streams = streams
        self._store = store
        self._decoder: BodyDecoder[ChatRequest] = BodyDecoder(ChatRequest, CHAT_HINTS)

    def routes(self) -> Iterable[Route]:
        doc = Doc(summary="Answer a conversation", body=ChatRequest, answer=ChatResponse, stream=True)
        yield Route("POST", "/v1/chat/completions", self.create, doc=doc)

    async def create(self, exchange: Exchange) -> None:
        body = self._streams.body_of(exchange)
        request = await self._bodies.read(exchange, self._decoder)
        keep = self._store.keeper(exchange, request) if request.store else None
        generate = partial(self._generate, request, keep)
        await self._streams.answer(
            exchange,
            body,
            new_id("chatcmpl-"),
            generate,
            stream=request.stream,
            store=keep is not None,
        )

    async def _generate(
        self, request: ChatRequest, keep: Callable[[bytes], None] | None, answer_id: str, exchange: Exchange
    ) -> None:
        model = await self._models.find_loaded(request.model, exchange, streams=request.stream)
        draws = request.n or 1
        with model.reserve(exchange, draws, request.options) as reservation:
            room = model.text_room(exchange, "messages", request)
            chat = await model.assistant.chat(request, room)
            self._bodies.ignored.note(exchange, chat.ignored)
            identity = new_identity(answer_id, request, model)
            options = output_options(
                request, logprobs=bool(request.logprobs), visible_special_ids=chat.visible_special_ids
            )
            generation = GenerationRequest(
                fields=request,
                format=ChatEncoder(identity, model.tokenizer, legacy_calls=bool(request.functions)),
                options=replace(
                    options, live_usage=identity.live_usage, prefix=_echoed(request), on_answer=keep
                ),
                prompts=[await model.assistant.encode(chat, room)],
                draws=draws,
                splitter=chat.splitter,
                prediction=await model.prompts.prediction(request, model.text_room(exchange, "prediction")),
                grammar=chat.grammar,
                reports=(
                    request.top_logprobs or 0 if request.logprobs else -1,
                    -1 if request.prompt_logprobs is None else request.prompt_logprobs,
                ),
            )
            await start_generation(model, reservation, generation)


def _echoed(request: ChatRequest) -> str:
    """The start of the answer."""
    if not request.echo or not request.continue_final_message:
        return ""
    return request.messages[-1].text("messages")


class ChatEncoder:
    """The ResponseEncoder of /v1/chat/completions. legacy_calls: a call is a `function_call`."""

    def __init__(
        self, identity: ResponseIdentity, tokenizer: Tokenizer, *, legacy_calls: bool = False
    ) -> None:
        self._identity = identity
        self._legacy_calls = legacy_calls
        self._tokenizer = tokenizer
        self._frame = EventFrame(identity, "chat.completion.chunk")

    def opening(self, index: int) -> bytes:
        return self._event(index, b'{"role":"assistant","content":""}')

    def content_chunks(self, index: int) -> Callable[[Sequence[str]], bytes]:
        before = b'{"index":%d,"delta":{"content":' % index
        return self._frame.content_chunks(before, b'},"logprobs":null,"finish_reason":null}')

    def event(self, part: ChoiceResult, offset: int | None) -> bytes:
        delta = b'{"content":%b}' % encode_json(part.text) if part.text or part.reason is None else b"{}"
        logprobs = b"null" if offset is None else encode_json(self._logprobs(part.reports))
        more = b"" if part.token_ids is None else b',"token_ids":%b' % encode_json(part.token_ids)
        if part.prompt_ids is not None:
            more += b',"prompt_token_ids":%b' % encode_json(part.prompt_ids)
        return self._event(part.index, delta, logprobs, encode_json(self._reason(part)), more)

    def delta(self, index: int, delta: Delta) -> bytes:
        return self._event(index, encode_json(self._delta_object(delta)))

    def _delta_object(self, delta: Delta) -> dict[str, Any]:
        if isinstance(delta, Content | Reasoning) or not self._legacy_calls:
            return delta_object(delta)
        name = {"name": delta.name} if isinstance(delta, CallStart) else {}
        arguments = "" if isinstance(delta, CallStart) else delta.text
        return {"function_call": {**name, "arguments": arguments}}

    def _reason(self, result: ChoiceResult) -> str | None:
        legacy = self._legacy_calls and result.reason == "tool_calls"
        return "function_call" if legacy else result.reason

    def _event(
        self, index: int, delta: bytes, logprobs: bytes = b"null", reason: bytes = b"null", more: bytes = b""
    ) -> bytes:
        head, tail = self._frame.head, self._frame.tail
        form = b'%b{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b%b}%b'
        return form % (head, index, delta, logprobs, reason, more, tail)

    def closing(self, usage: Usage) -> bytes:
        return self._frame.closing(usage)

    def failure(self, body: bytes) -> bytes:
        return error_event(body)

    def response(self, results: list[ChoiceResult], usage: Usage, with_logprobs: bool) -> bytes:
        who, first = self._identity, results[0]
        return encode_json(
            ChatResponse(
                id=who.id,
                created=who.created,
                model=who.model,
                system_fingerprint=who.fingerprint,
                service_tier=who.service_tier or UNSET,
                kv_transfer_params=transfer_params(results),
                choices=[self._choice(result, with_logprobs) for result in results],
                usage=usage,
                prompt_logprobs=prompt_logprobs(first.prompt_reports, self._tokenizer) or UNSET,
                prompt_token_ids=first.prompt_ids or UNSET,
            )
        )

    def _choice(self, result: ChoiceResult, with_logprobs: bool) -> ChatChoice:
        return ChatChoice(
            index=result.index,
            message=_message(result, legacy=self._legacy_calls),
            logprobs=self._logprobs(result.reports) if with_logprobs else None,
            finish_reason=self._reason(result),
            token_ids=result.token_ids,
        )

    def _logprobs(self, reports: list[TokenReport]) -> ChatLogprobs:
        content: list[ChatLogprob] = []
        for report in reports:
            assert report.logprob is not None
            tops = [TopLogprob(token=t, logprob=lp, bytes=b) for t, lp, b in map(self._entry, report.top)]
            token, logprob, piece = self._entry((report.token, report.logprob))
            content.append(ChatLogprob(token=token, logprob=logprob, bytes=piece, top_logprobs=tops))
        return ChatLogprobs(content=content)

    def _entry(self, entry: tuple[int, float]) -> tuple[str, float, list[int]]:
        piece = self._tokenizer.token_bytes(entry[0])
        name = f"token_id:{entry[0]}" if self._identity.tokens_by_id else piece.decode("utf-8", "replace")
        return name, entry[1], list(piece)


def delta_object(delta: Delta) -> dict[str, Any]:
    """The `delta` of a chat chunk."""
    if isinstance(delta, Content):
        return {"content": delta.text}
    if isinstance(delta, Reasoning):
        return {"reasoning_content": delta.text}
    kind, said = ("custom", "input") if delta.custom else ("function", "arguments")
    if isinstance(delta, CallStart):
        call: dict[str, Any] = {"index": delta.index, "id": delta.id, "type": kind}
        return {"tool_calls": [call | {kind: {"name": delta.name, said: ""}}]}
    return {"tool_calls": [{"index": delta.index, kind: {said: delta.text}}]}


def _message(result: ChoiceResult, *, legacy: bool) -> ChatMessage:
    calls = [_call(call) for call in result.calls]
    content = None if calls and not result.text else result.text
    return ChatMessage(
        role="assistant",
        refusal=None,
        content=content,
        reasoning_content=result.reasoning or None,
        tool_calls=[] if legacy else calls,
        function_call=_function(result.calls[0]) if legacy and calls else None,
    )


def _call(call: ToolCall) -> MessageToolCall:
    if call.custom:
        custom = CustomCall(name=call.name, input=call.arguments)
        return MessageToolCall(id=call.id, type="custom", custom=custom)
    return MessageToolCall(id=call.id, function=_function(call))


def _function(call: ToolCall) -> FunctionCall:
    return FunctionCall(name=call.name, arguments=call.arguments)
