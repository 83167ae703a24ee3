"""Deltas, the pieces of an assistant's text: content, reasoning, and calls of tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Call number `index` of a choice begins."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A further piece of the JSON text of a call's arguments."""

    index: int
    text: str


Delta = Content | Reasoning | CallStart | CallArguments


class Splitter(Protocol):
    """Splits one choice's text as it comes. The pieces' texts, put together, lose only the delimiters and
    white space beside them. in_reasoning: the text to come is reasoning. done: what may come is not wanted.
    """

    @property
    def in_reasoning(self) -> bool: ...

    @property
    def done(self) -> bool: ...

    def push(self, text: str) -> list[Delta]: ...

    def flush(self) -> list[Delta]:
        """The text that was held, now that no more comes."""
        ...


@dataclass(slots=True)
class ToolCall:
    """A whole call; arguments: JSON text."""

    id: str
    name: str
    arguments: str = ""
