"""Deltas, the pieces of an assistant's text: content, reasoning, and calls of tools."""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(slots=True)
class ToolCall:
    """A whole call; arguments: JSON text."""

    id: str
    name: str
    arguments: str = ""
