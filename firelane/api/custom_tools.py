"""Custom tools of requests, whose input is one text."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from firelane.api.patterns import GrammarText
from firelane.errors import RequestError

ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


class InputGrammar(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """definition: in the grammar's syntax."""

    ALWAYS_STRICT: ClassVar[bool] = True

    syntax: Literal["lark", "regex"]
    definition: GrammarText


class InputFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Any text, or one of a grammar: in an object of its own, as in chat, or beside the type, as in
    Responses."""

    ALWAYS_STRICT: ClassVar[bool] = True

    type: Literal["text", "grammar"]
    grammar: InputGrammar | None = None
    syntax: Literal["lark", "regex"] | None = None
    definition: GrammarText | None = None

    def held(self, where: str) -> InputGrammar | None:
        """The grammar; None of any text. Raises RequestError where it is missing."""
        if self.type == "text":
            return None
        if self.grammar is not None:
            return self.grammar
        if self.syntax is None or self.definition is None:
            missing = f"{where}.{'syntax' if self.syntax is None else 'definition'}"
            raise RequestError(f"`{missing}` is missing", param=missing, code="missing_parameter")
        return InputGrammar(syntax=self.syntax, definition=self.definition)


class CustomDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool whose input is one text."""

    name: ToolName
    description: str | None = None
    format: InputFormat | None = None
