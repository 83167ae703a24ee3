"""Deltas, the pieces of an assistant's text: content, reasoning, and calls of tools."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Call number `index` of a choice begins. custom: of a custom tool, whose input follows."""

    index: int
    id: str
    name: str
    custom: bool = False


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A further piece of the JSON text of a call's arguments, or of a custom tool's input."""

    index: int
    text: str
    custom: bool = False


Delta = Content | Reasoning | CallStart | CallArguments


@dataclass(slots=True)
class ToolCall:
    """A whole call. arguments: JSON text, or a custom tool's input."""

    id: str
    name: str
    arguments: str = ""
    custom: bool = False


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """The same pieces, texts of one kind that follow each other as one."""
    made: list[Delta] = []
    for delta in deltas:
        last = made[-1] if made else None
        if isinstance(delta, CallStart) or not _continues(last, delta):
            made.append(delta)
        else:
            assert last is not None
            assert not isinstance(last, CallStart)
            made[-1] = replace(last, text=last.text + delta.text)
    return made


def _continues(last: Delta | None, delta: Content | Reasoning | CallArguments) -> bool:
    if isinstance(last, CallArguments) and isinstance(delta, CallArguments):
        return last.index == delta.index
    return type(last) is type(delta)
