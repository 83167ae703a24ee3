"""Conversations as templates of Harmony take them."""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]


def harmony_history(messages: list[Message]) -> list[Message]:
    """One call a message, each followed by its result; reasoning by the name that the templates know, and
    only after the last whole answer: what led to an answer is not shown again.
    """
    made = [part for i in range(len(messages)) for part in _parts(messages, i)]
    last = max((i for i, message in enumerate(made[:-1]) if _is_answer(message)), default=-1)
    return [_thinking(message, keep=i > last) for i, message in enumerate(made)]


def _is_answer(message: Message) -> bool:
    return message["role"] == "assistant" and not message.get("tool_calls")


def _parts(messages: list[Message], at: int) -> list[Message]:
    """The message; one of several calls in parts, with the results of all but the last between them."""
    message = messages[at]
    calls = message.get("tool_calls") or []
    if message["role"] == "tool":
        return [] if _is_moved(messages, at) else [message]
    if len(calls) < 2:
        return [message]
    results = _results(messages, at)
    made: list[Message] = []
    for i, call in enumerate(calls):
        own = message if i == 0 else {"role": "assistant", "content": ""}
        made.append({**own, "tool_calls": [call]})
        made += [result for result in results if result.get("tool_call_id") == call.get("id")]
    return made


def _results(messages: list[Message], at: int) -> list[Message]:
    """The results that follow the calls of a message."""
    end = at + 1
    while end < len(messages) and messages[end]["role"] == "tool":
        end += 1
    return messages[at + 1 : end]


def _is_moved(messages: list[Message], at: int) -> bool:
    """Whether the result was put behind its call."""
    caller = at - 1
    while caller >= 0 and messages[caller]["role"] == "tool":
        caller -= 1
    calls = (messages[caller].get("tool_calls") or []) if caller >= 0 else []
    return len(calls) > 1 and any(call.get("id") == messages[at].get("tool_call_id") for call in calls)


def _thinking(message: Message, *, keep: bool) -> Message:
    if "reasoning_content" not in message:
        return message
    told = {key: value for key, value in message.items() if key != "reasoning_content"}
    if not keep:
        return told
    said = told.get("content") if message.get("tool_calls") else ""
    if said:  # templates take one of the two beside a call
        told["content"] = ""
    told["thinking"] = "\n".join(filter(None, (message["reasoning_content"], said)))
    return told
