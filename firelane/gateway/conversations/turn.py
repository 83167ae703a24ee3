"""One turn of a conversation: what it starts from, and what is kept of it."""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass, replace

import msgspec

from firelane.api.stored.responses import TOLD, ResponseObject, ResponsesRequest, conversation_id
from firelane.api.stored.responses_items import CALL_TYPES, OUTPUT_TYPES, InputItem, InputPart
from firelane.errors import NotFoundError, RequestError
from firelane.gateway.conversations.chat_store import ChatStore
from firelane.gateway.conversations.conversation_store import ConversationStore, StoredItem
from firelane.gateway.conversations.response_store import ResponseStore, StoredResponse
from firelane.gateway.requests.formats import encode_json
from firelane.gateway.tenants.tenant import Tenant

_ITEMS: msgspec.json.Decoder[list[InputItem]] = msgspec.json.Decoder(list[InputItem])
_ITEM: msgspec.json.Decoder[InputItem] = msgspec.json.Decoder(InputItem)
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


@dataclass(frozen=True, slots=True)
class ConversationStores:
    """State that outlives a request."""

    responses: ResponseStore
    conversations: ConversationStore
    chats: ChatStore

    @classmethod
    def of(cls, most: int) -> ConversationStores:
        """Stores of at most so many entries each."""
        return cls(ResponseStore(most), ConversationStore(most), ChatStore(most))


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """stored: JSON of the items of the turns before. earlier: the same, decoded. own: what this one adds.
    conversation: id of the one that the turn belongs to."""

    stored: tuple[bytes, ...]
    earlier: list[InputItem]
    own: list[InputItem]
    conversation: str | None = None

    def without(self, dropped: int) -> ConversationTurn:
        """The same without the first `dropped` items, and without outputs whose call is among them. What is
        stored stays whole."""
        gone = (*self.earlier, *self.own)[:dropped]
        calls = {item.call_key for item in gone if item.type in CALL_TYPES}

        def rest(items: list[InputItem], first: int) -> list[InputItem]:
            kept = items[first:]
            return [i for i in kept if i.type not in OUTPUT_TYPES or i.call_key not in calls]

        own_first = max(0, dropped - len(self.earlier))
        return replace(self, earlier=rest(self.earlier, dropped), own=rest(self.own, own_first))

    def keep(self, kept: ConversationStores, tenant: Tenant, answer: ResponseObject, body: bytes) -> None:
        """Store the answer, if it is to be, and add to the conversation, if it is still there."""
        inputs = stored_items(self.own)
        outputs = [StoredItem(item.id, encode_json(item)) for item in answer.output]
        if answer.store:
            own, made = (tuple(item.json for item in items) for items in (inputs, outputs))
            kept.responses.put(tenant, StoredResponse(answer.id, body, self.stored + own, made))
        if self.conversation is not None:
            with contextlib.suppress(NotFoundError):
                kept.conversations.add(tenant, self.conversation, inputs + outputs)

    def keep_unfinished(self, kept: ConversationStores, tenant: Tenant, answer: ResponseObject) -> None:
        """Store an answer that has no items yet, or never will."""
        own = tuple(item.json for item in stored_items(self.own))
        kept.responses.put(tenant, StoredResponse(answer.id, encode_json(answer), self.stored + own, ()))


def begin_turn(request: ResponsesRequest, kept: ConversationStores, tenant: Tenant) -> ConversationTurn:
    """Raises NotFoundError where the answer or the conversation that the request continues, or an item that
    it refers to, is not stored, RequestError where it asks to be stored and nothing is, or where the
    conversation is full.
    """
    if (request.store or request.background) and not kept.responses.enabled:
        raise RequestError(
            "`store` or `background` is true, but this server keeps no answers (max_stored_responses = 0): "
            "leave it out",
            param="store" if request.store else "background",
            code="unsupported_parameter",
        )
    own = request.input or []
    if isinstance(own, str):
        own = [InputItem(role="user", content=[InputPart(type="input_text", text=own)])]
    stored: tuple[bytes, ...] = ()
    conversation = conversation_id(request.conversation)
    if request.previous_response_id is not None:
        previous = kept.responses.get(tenant, request.previous_response_id)
        stored = previous.inputs + previous.outputs
    elif conversation is not None:
        held = kept.conversations.with_room(tenant, conversation, len(own) + 1)
        stored = tuple(item.json for item in held.items)
    earlier = _with_references(_ITEMS.decode(b"[%b]" % b",".join(stored)), kept, tenant) if stored else []
    there = {item.id for item in earlier}
    own = [item for item in own if item.type != "item_reference" or item.id not in there]
    own = _with_references(own, kept, tenant)
    if not earlier and not own:
        raise RequestError("`input` is missing, and the conversation is empty", param="input")
    return ConversationTurn(stored, earlier, own, conversation)


def _with_references(items: list[InputItem], kept: ConversationStores, tenant: Tenant) -> list[InputItem]:
    """With items in place of references to them. Raises NotFoundError."""
    wanted = {item.id or "" for item in items if item.type == "item_reference"}
    if not wanted:
        return items
    found = kept.conversations.find_items(tenant, wanted) | kept.responses.find_items(tenant, wanted)
    for item_id in wanted:
        if item_id not in found:
            raise NotFoundError(
                f"no item '{item_id[:80]}' is stored here: send the item itself in place of the reference",
                param="input",
                code="item_not_found",
            )
    known = {item_id: _ITEM.decode(json) for item_id, json in found.items()}
    return [known[item.id or ""] if item.type == "item_reference" else item for item in items]


def stored_items(items: list[InputItem]) -> list[StoredItem]:
    """With the ids that they have, or get."""
    made: list[StoredItem] = []
    for item in items:
        item_id = item.id or f"{_PREFIXES.get(item.type, 'item')}_{secrets.token_hex(16)}"
        made.append(StoredItem(item_id, _encode(item, item_id)))
    return made


def initial_answer(request: ResponsesRequest, served_name: str, kept: ConversationStores) -> ResponseObject:
    """The answer before its first item: what it repeats of the request."""
    reasoning, text = request.reasoning, request.text
    conversation = conversation_id(request.conversation)
    given = text.format if text is not None else None
    form = {"type": "text"} if given is None else _without_nulls(msgspec.to_builtins(given))
    return ResponseObject(
        id=f"resp_{secrets.token_hex(16)}",
        created_at=int(time.time()),
        background=bool(request.background),
        conversation=None if conversation is None else {"id": conversation},
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        model=request.model or served_name,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        prompt_cache_key=request.prompt_cache_key,
        reasoning={"effort": reasoning.effort if reasoning is not None else None, "summary": None},
        safety_identifier=request.safety_identifier,
        store=kept.responses.enabled and request.store is not False,
        temperature=request.temperature,
        text={"format": form, "verbosity": "medium"},
        tool_choice=request.tool_choice if request.tool_choice is not None else "auto",
        tools=[tool for tool in request.tools or () if tool.type in TOLD],
        top_logprobs=request.top_logprobs or 0,
        top_p=request.top_p,
        truncation=request.truncation or "disabled",
        user=request.user,
        metadata=request.metadata or {},
    )


def _without_nulls(fields: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _encode(item: InputItem, item_id: str) -> bytes:
    """With the id and the type that a reader of the stored items expects."""
    fields: dict[str, object] = msgspec.to_builtins(item)
    if isinstance(item.content, str):
        kind = "output_text" if item.role == "assistant" else "input_text"
        fields["content"] = [{"type": kind, "text": item.content}]
    head = {"type": item.type, "id": item_id}
    return encode_json({**head, **fields})
