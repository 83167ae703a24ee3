"""Inputs of custom tools, out of the arguments that the model writes: {"input": "..."}."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from firelane.text.deltas import CallArguments, CallStart, Delta
from firelane.text.tools.tool import Tool

_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_UNIT = "u[0-9a-fA-F]{4}"
_HIGH, _LOW = r"u[dD][89abAB][0-9a-fA-F]{2}", r"u[dD][c-fC-F][0-9a-fA-F]{2}"
_WHOLE = re.compile(
    rf'(?:[^"\\]|\\["\\/bfnrt]|\\{_HIGH}\\{_LOW}|\\{_HIGH}(?=[^\\]|\\[^u]|\\{_UNIT})|\\(?!{_HIGH}){_UNIT})*'
)
"""A part of a JSON string that ends in no half of a character."""


class CustomInputs:
    """Puts the inputs of custom tools in the place of the arguments of their calls, as these come."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._custom = {name for name, tool in tools.items() if tool.custom}
        self._reader: _InputReader | None = None
        self._index = 0

    def read(self, deltas: list[Delta], *, ended: bool) -> list[Delta]:
        """The deltas with inputs. ended: no more will come. What has been read before stays as it is."""
        if not self._custom:
            return deltas
        made: list[Delta] = []
        for delta in deltas:
            made += self._one(delta)
        return made + (self._rest() if ended else [])

    def _one(self, delta: Delta) -> list[Delta]:
        if isinstance(delta, CallStart):
            before, self._index = self._rest(), delta.index
            if delta.custom or delta.name not in self._custom:
                return [*before, delta]
            self._reader = _InputReader()
            return [*before, replace(delta, custom=True)]
        if not isinstance(delta, CallArguments) or self._reader is None:
            return [delta]
        return self._piece(self._reader.push(delta.text))

    def _rest(self) -> list[Delta]:
        reader, self._reader = self._reader, None
        return [] if reader is None else self._piece(reader.rest())

    def _piece(self, text: str) -> list[Delta]:
        return [CallArguments(self._index, text, custom=True)] if text else []


class _InputReader:
    """The text of one input."""

    def __init__(self) -> None:
        self._held = ""
        self._begun = self._ended = False

    def push(self, text: str) -> str:
        if self._ended:
            return ""
        self._held += text
        if not self._begun:
            head = _HEAD.match(self._held)
            if head is None:
                return ""
            self._begun, self._held = True, self._held[head.end() :]
        found = _WHOLE.match(self._held)
        assert found is not None
        self._held = self._held[found.end() :]
        self._ended = self._held.startswith('"')
        return _decoded(found[0])

    def rest(self) -> str:
        """Arguments in any other form are the input as they are."""
        return "" if self._begun else self._held


def _decoded(text: str) -> str:
    """The text of a part of a JSON string; halves of characters become U+FFFD."""
    said: str = json.loads(f'"{text}"', strict=False)
    return said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
