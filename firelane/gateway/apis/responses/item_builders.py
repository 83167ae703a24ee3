"""Output items while they are written, and the events that tell of them.

Each kind of item knows its stream events (OpenAI's reference of Responses, "Streaming events"): those that
follow `response.output_item.added`, the one that carries a further piece of text, and those before
`response.output_item.done`.
"""

from __future__ import annotations

import secrets
from typing import Any, ClassVar

from firelane.api.stored.responses_items import (
    ItemStatus,
    OutputCall,
    OutputCustomCall,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
    ResponsesLogprob,
)
from firelane.text.deltas import CallStart

Event = tuple[str, dict[str, Any]]
"""Type, and fields besides those that all events of an item have."""


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"


class MessageBuilder:
    delta_event: ClassVar[str] = "response.output_text.delta"
    delta_fields: ClassVar[dict[str, Any]] = {"content_index": 0}

    def __init__(self) -> None:
        self.id = _new_id("msg")
        self.pieces: list[str] = []
        self.logprobs: list[ResponsesLogprob] = []

    def item(self, status: ItemStatus) -> OutputMessage:
        started = status != "in_progress"
        return OutputMessage(id=self.id, status=status, content=[self._part()] if started else [])

    def _part(self) -> OutputText:
        return OutputText(text="".join(self.pieces), logprobs=self.logprobs)

    def opening(self) -> list[Event]:
        return [("response.content_part.added", {"content_index": 0, "part": OutputText(text="")})]

    def closing(self) -> list[Event]:
        part = self._part()
        done: dict[str, Any] = {"content_index": 0, "text": part.text, "logprobs": part.logprobs}
        return [
            ("response.output_text.done", done),
            ("response.content_part.done", {"content_index": 0, "part": part}),
        ]


class ReasoningBuilder:
    delta_event: ClassVar[str] = "response.reasoning_text.delta"
    delta_fields: ClassVar[dict[str, Any]] = {"content_index": 0}

    def __init__(self) -> None:
        self.id = _new_id("rs")
        self.pieces: list[str] = []

    def item(self, status: ItemStatus) -> OutputReasoning:
        started = status != "in_progress"
        return OutputReasoning(id=self.id, status=status, content=[self._part()] if started else [])

    def _part(self) -> ReasoningText:
        return ReasoningText(text="".join(self.pieces))

    def opening(self) -> list[Event]:
        return [("response.content_part.added", {"content_index": 0, "part": ReasoningText(text="")})]

    def closing(self) -> list[Event]:
        part = self._part()
        return [
            ("response.reasoning_text.done", {"content_index": 0, "text": part.text}),
            ("response.content_part.done", {"content_index": 0, "part": part}),
        ]


class CustomCallBuilder:
    delta_event: ClassVar[str] = "response.custom_tool_call_input.delta"
    delta_fields: ClassVar[dict[str, Any]] = {}

    def __init__(self, start: CallStart, namespace: str | None = None) -> None:
        self.id = _new_id("ctc")
        self._namespace = namespace
        self.pieces: list[str] = []
        self._start = start

    def item(self, status: ItemStatus) -> OutputCustomCall:
        start = self._start
        return OutputCustomCall(
            id=self.id,
            status=status,
            call_id=start.id,
            name=start.name,
            input="".join(self.pieces),
            namespace=self._namespace,
        )

    def opening(self) -> list[Event]:
        return []

    def closing(self) -> list[Event]:
        return [("response.custom_tool_call_input.done", {"input": "".join(self.pieces)})]


class CallBuilder:
    delta_event: ClassVar[str] = "response.function_call_arguments.delta"
    delta_fields: ClassVar[dict[str, Any]] = {}

    def __init__(self, start: CallStart, namespace: str | None = None) -> None:
        self.id = _new_id("fc")
        self._namespace = namespace
        self.pieces: list[str] = []
        self._start = start

    def item(self, status: ItemStatus) -> OutputCall:
        start = self._start
        return OutputCall(
            id=self.id,
            status=status,
            call_id=start.id,
            name=start.name,
            arguments="".join(self.pieces),
            namespace=self._namespace,
        )

    def opening(self) -> list[Event]:
        return []

    def closing(self) -> list[Event]:
        done = {"name": self._start.name, "arguments": "".join(self.pieces)}
        return [("response.function_call_arguments.done", done)]


ItemBuilder = MessageBuilder | ReasoningBuilder | CallBuilder | CustomCallBuilder
"""One item in the making. delta_event: type of the event for a piece of text; delta_fields: what it holds
besides the text.
"""
