"""One turn of a conversation: what it starts from, and what is kept of it."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

import msgspec

from firelane.api.responses import ResponseObject, ResponsesRequest
from firelane.api.responses_items import InputItem, InputPart
from firelane.errors import RequestError
from firelane.gateway.answers.formats import encode_json
from firelane.gateway.answers.response_store import ResponseStore, StoredResponse
from firelane.gateway.tenants.tenant import Tenant

_ITEMS: msgspec.json.Decoder[list[InputItem]] = msgspec.json.Decoder(list[InputItem])
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


@dataclass(frozen=True, slots=True)
class Turn:
    """stored: JSON of the items of the turns before. earlier: the same, decoded. own: what this one adds."""

    stored: tuple[bytes, ...]
    earlier: list[InputItem]
    own: list[InputItem]

    def without(self, dropped: int) -> Turn:
        """The same without the first `dropped` items, and without outputs whose call is among them. What is
        stored stays whole."""
        calls = {
            item.call_id for item in (*self.earlier, *self.own)[:dropped] if item.type == "function_call"
        }

        def rest(items: list[InputItem], first: int) -> list[InputItem]:
            kept = items[first:]
            return [i for i in kept if i.type != "function_call_output" or i.call_id not in calls]

        own_first = max(0, dropped - len(self.earlier))
        return Turn(self.stored, rest(self.earlier, dropped), rest(self.own, own_first))

    def keep(self, store: ResponseStore, tenant: Tenant, answer: ResponseObject, body: bytes) -> None:
        inputs = (*self.stored, *map(_encode, self.own))
        outputs = tuple(encode_json(item) for item in answer.output)
        store.put(tenant, StoredResponse(answer.id, body, inputs, outputs))


def begin_turn(request: ResponsesRequest, store: ResponseStore, tenant: Tenant) -> Turn:
    """Raises NotFoundError where the answer that the request continues is not stored, RequestError where it
    asks to be stored and nothing is."""
    if request.store and not store.enabled:
        raise RequestError(
            "`store` is true, but this server keeps no answers (--max-stored-responses 0): leave it out",
            param="store",
            code="unsupported_parameter",
        )
    stored: tuple[bytes, ...] = ()
    if request.previous_response_id is not None:
        previous = store.get(tenant, request.previous_response_id)
        stored = previous.inputs + previous.outputs
    own = request.input or []
    if isinstance(own, str):
        own = [InputItem(role="user", content=[InputPart(type="input_text", text=own)])]
    return Turn(stored, _ITEMS.decode(b"[%b]" % b",".join(stored)) if stored else [], own)


def initial_answer(request: ResponsesRequest, served_name: str, store: ResponseStore) -> ResponseObject:
    """The answer before its first item: what it repeats of the request."""
    reasoning, text = request.reasoning, request.text
    given = text.format if text is not None else None
    form = {"type": "text"} if given is None else _without_nulls(msgspec.to_builtins(given))
    return ResponseObject(
        id=f"resp_{secrets.token_hex(16)}",
        created_at=int(time.time()),
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        model=request.model or served_name,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        prompt_cache_key=request.prompt_cache_key,
        reasoning={"effort": reasoning.effort if reasoning is not None else None, "summary": None},
        safety_identifier=request.safety_identifier,
        store=store.enabled and request.store is not False,
        temperature=request.temperature,
        text={"format": form, "verbosity": "medium"},
        tool_choice=request.tool_choice if request.tool_choice is not None else "auto",
        tools=[tool for tool in request.tools or () if tool.type in ("function", "namespace")],
        top_logprobs=request.top_logprobs or 0,
        top_p=request.top_p,
        truncation=request.truncation or "disabled",
        user=request.user,
        metadata=request.metadata or {},
    )


def _without_nulls(fields: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _encode(item: InputItem) -> bytes:
    """With the id and the type that a reader of the stored items expects."""
    fields: dict[str, object] = msgspec.to_builtins(item)
    if isinstance(item.content, str):
        kind = "output_text" if item.role == "assistant" else "input_text"
        fields["content"] = [{"type": kind, "text": item.content}]
    head = {"type": item.type, "id": item.id or f"{_PREFIXES[item.type]}_{secrets.token_hex(16)}"}
    return encode_json({**head, **fields})
