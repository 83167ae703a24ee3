"""Families of models by how they write calls of tools."""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Callable
from typing import Protocol

from firelane.text.constraints import single_line
from firelane.text.tools.stream_buffer import Reading, StreamBuffer
from firelane.text.tools.tool import Tool

MAX_FORCED_CALLS = 16
_ALPHANUMERIC = string.ascii_letters + string.digits
TokenOf = Callable[[str], "int | None"]
"""The id of the special token of this name, None where it is plain text for the tokenizer."""


class Family(Protocol):
    """name: of --tool-parser. delimiters: special tokens that the parser must see as text."""

    @property
    def name(self) -> str: ...

    @property
    def delimiters(self) -> tuple[str, ...]: ...

    def new_id(self) -> str:
        """An id for a call, as the family's templates accept it."""
        ...

    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        """Content and calls."""
        ...

    def rules(self, tools: list[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        """Rules of llguidance's Lark, the first of which, `calls`, is one call of `tools` or, if `parallel`,
        several.
        """
        ...


def openai_id() -> str:
    return "call_" + secrets.token_hex(12)


def nine_letters() -> str:
    """Mistral's templates refuse an id of any other form."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


def quoted(text: str) -> str:
    """A Lark literal."""
    return json.dumps(text)


def mark_symbol(mark: str, token_of: TokenOf) -> str:
    """A mark in a Lark rule: by its token where it is one, which no text could give."""
    token = token_of(mark)
    return quoted(mark) if token is None else f"<[{token}]>"


def calls_rules(tools: list[Tool], calls: str, call: Callable[[Tool], str]) -> str:
    """calls: the right side of the first rule, in terms of `call`. call: the right side of the rule of one
    tool's call.
    """
    lines = [f"calls: {calls}", "call: " + " | ".join(f"call{i}" for i in range(len(tools)))]
    lines += [f"call{i}: {call(tool)}" for i, tool in enumerate(tools)]
    return "\n".join(lines) + "\n"


def inline_arguments(tool: Tool) -> str:
    """The JSON of the tool's arguments, within a rule."""
    return f"%json {json.dumps(single_line(tool.schema()))}"


def repeated(separator: str, *, parallel: bool) -> str:
    """`call`, as often as the request allows."""
    return f"call ({separator} call){{0,{MAX_FORCED_CALLS - 1}}}" if parallel else "call"
