"""Earlier turns in the shape that one model's template takes: no text of a conversation is lost, and none is
refused, whoever spoke when.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
Messages = list[Message]
GAP = "\n\n"
"""Between texts of what becomes one message."""
ID_CHARS = 9
"""The length of ids of calls, in letters and digits, where a template insists on that."""

THOUGHT = "reasoning_content"
"""The field of a message's reasoning, as clients send it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryShape:
    """The shape of earlier turns that a template takes. leads: a system message at the beginning. late:
    further ones, later; what is not taken as a system's becomes a user's text in its place. asked_last: a
    system message is shown only where a user speaks last. alternates: user and assistant have to take
    turns: neighbours of one role become one message. one_call: a message may hold one call: several become
    several messages, each before its result. content_apart: text beside calls is a message of its own.
    filled: an empty one of the user stands between the two. results_end: no user may speak after a result:
    what one says is put behind the result's text. named: results have to name their function. short_ids:
    ids of calls have to be nine letters or digits. named_ids: ids of calls have to name their function.
    thought: the field of a message that its reasoning is shown from."""

    leads: bool = True
    late: bool = True
    asked_last: bool = False
    alternates: bool = False
    one_call: bool = False
    content_apart: bool = False
    filled: bool = False
    results_end: bool = False
    named: bool = False
    short_ids: bool = False
    named_ids: bool = False
    thought: str = THOUGHT


AS_SENT = HistoryShape()


def arranged(messages: Messages, shape: HistoryShape) -> Messages:
    """Messages with roles, calls and results where the template takes them."""
    messages = _with_systems(messages, shape)
    if shape.thought != THOUGHT:
        messages = [_renamed(message, shape.thought) for message in messages]
    if shape.named:
        messages = _named(messages)
    if shape.short_ids:
        messages = [_with_short_ids(message) for message in messages]
    if shape.named_ids:
        messages = _with_named_ids(messages)
    if shape.one_call:
        messages = one_call_each(messages)
    if shape.content_apart:
        messages = [part for message in messages for part in _apart(message, filled=shape.filled)]
    return messages


def joined(messages: Messages, shape: HistoryShape) -> Messages:
    """Messages, of which results may have become a user's, without neighbours that the template refuses."""
    made: Messages = []
    for message in messages:
        last = made[-1] if made else {"role": ""}
        role = message["role"]
        ends = shape.results_end and role == "user" and last["role"] == "tool"
        alike = shape.alternates and role == last["role"] in ("user", "assistant")
        if ends:
            made[-1] = last | {"content": _join(last, message)}
        elif alike and not last.get("tool_calls"):
            made[-1] = last | message | {"content": _join(last, message)}
        else:
            made.append(message)
    return made


def one_call_each(messages: Messages) -> Messages:
    """Several calls of one message as several messages, each followed by its results."""
    return [part for i in range(len(messages)) for part in _parts(messages, i)]


def _join(first: Message, second: Message) -> str:
    return GAP.join(filter(None, (first["content"], second["content"])))


def _with_systems(messages: Messages, shape: HistoryShape) -> Messages:
    """Leading system messages are one."""
    end = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    rest = messages[end:]
    if not shape.late:
        rest = [_as_user(message) for message in rest]
    if not end:
        return rest
    first = messages[0]
    if end > 1:
        first = first | {
            "content": GAP.join(filter(None, (message["content"] for message in messages[:end])))
        }
    leads = shape.leads and (not shape.asked_last or _asks(messages, shape))
    return [first if leads else _as_user(first), *rest]


def _asks(messages: Messages, shape: HistoryShape) -> bool:
    """Whether a user speaks last, in a message that stays one."""
    asked = ("user",) if shape.late else ("user", "system")
    before = next((message["role"] for message in reversed(messages) if message["role"] not in asked), "")
    return messages[-1]["role"] in asked and not (shape.results_end and before == "tool")


def _as_user(message: Message) -> Message:
    return message | {"role": "user"} if message["role"] == "system" else message


def _renamed(message: Message, field: str) -> Message:
    if THOUGHT not in message:
        return message
    kept = {name: value for name, value in message.items() if name != THOUGHT}
    return kept | {field: message[THOUGHT]}


def _apart(message: Message, *, filled: bool) -> Iterator[Message]:
    if not message.get("tool_calls") or not message["content"]:
        yield message
        return
    yield {"role": "assistant", "content": message["content"]}
    if filled:
        yield {"role": "user", "content": ""}
    yield message | {"content": ""}


def _named(messages: Messages) -> Messages:
    """With the name of the function in each result."""
    names: dict[Any, str] = {}
    made: Messages = []
    for message in messages:
        names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls") or ()}
        if message["role"] == "tool" and "name" not in message:
            message = message | {"name": names.get(message.get("tool_call_id"), "")}
        made.append(message)
    return made


def _with_named_ids(messages: Messages) -> Messages:
    """With the name of the function in the id of each call, `functions.NAME:NUMBER`, and of its result."""
    ids: dict[Any, str] = {}
    made: Messages = []
    count = 0
    for message in messages:
        calls: list[Message] = []
        for call in message.get("tool_calls") or ():
            ids[call["id"]] = _naming(call["id"], call["function"]["name"], count)
            calls.append(call | {"id": ids[call["id"]]})
            count += 1
        more: Message = {"tool_calls": calls} if calls else {}
        if message.get("tool_call_id") in ids:
            more = {"tool_call_id": ids[message["tool_call_id"]]}
        made.append(message | more)
    return made


def _naming(call_id: str, name: str, number: int) -> str:
    before, _, end = call_id.rpartition(":")
    return (
        call_id if before in (name, f"functions.{name}") and end.isdecimal() else f"functions.{name}:{number}"
    )


def _with_short_ids(message: Message) -> Message:
    if message["role"] == "tool" and "tool_call_id" in message:
        return message | {"tool_call_id": _short(message["tool_call_id"])}
    if not message.get("tool_calls"):
        return message
    return message | {"tool_calls": [call | {"id": _short(call["id"])} for call in message["tool_calls"]]}


def _short(call_id: str) -> str:
    """The id, or as many letters and digits as are wanted, the same for the same id."""
    if len(call_id) == ID_CHARS and call_id.isascii() and call_id.isalnum():
        return call_id
    return base64.b32encode(hashlib.sha256(call_id.encode()).digest()).decode()[:ID_CHARS].lower()


def _parts(messages: Messages, at: int) -> Messages:
    """The message; one of several calls in parts, with the results of all but the last between them."""
    message = messages[at]
    calls = message.get("tool_calls") or []
    if message["role"] == "tool":
        return [] if _is_moved(messages, at) else [message]
    if len(calls) < 2:
        return [message]
    results = _results(messages, at)
    made: Messages = []
    for i, call in enumerate(calls):
        own = message if i == 0 else {"role": "assistant", "content": ""}
        made.append({**own, "tool_calls": [call]})
        made += [result for result in results if result.get("tool_call_id") == call.get("id")]
    return made


def _results(messages: Messages, at: int) -> Messages:
    """The results that follow the calls of a message."""
    end = at + 1
    while end < len(messages) and messages[end]["role"] == "tool":
        end += 1
    return messages[at + 1 : end]


def _is_moved(messages: Messages, at: int) -> bool:
    """Whether the result was put behind its call."""
    caller = at - 1
    while caller >= 0 and messages[caller]["role"] == "tool":
        caller -= 1
    calls = (messages[caller].get("tool_calls") or []) if caller >= 0 else []
    return len(calls) > 1 and any(call.get("id") == messages[at].get("tool_call_id") for call in calls)
