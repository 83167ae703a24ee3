"""Conversations as templates of Harmony take them."""

from __future__ import annotations

from typing import Any

from firelane.text.history import one_call_each

Message = dict[str, Any]


def harmony_history(messages: list[Message]) -> list[Message]:
    """One call a message, each followed by its result; reasoning by the name that the templates know, and
    only after the last whole answer: what led to an answer is not shown again.
    """
    made = one_call_each(messages)
    last = max((i for i, message in enumerate(made[:-1]) if _is_answer(message)), default=-1)
    return [_thinking(message, keep=i > last) for i, message in enumerate(made)]


def _is_answer(message: Message) -> bool:
    return message["role"] == "assistant" and not message.get("tool_calls")


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
