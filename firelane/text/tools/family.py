"""Families of models by how they write calls of tools."""

from __future__ import annotations

import abc
import json
import secrets
import string
from collections.abc import Sequence
from typing import Any

from firelane.text.tools.call_rules import TokenOf, free_start, held_tools, symbols
from firelane.text.tools.stream_buffer import Reading, StreamBuffer
from firelane.text.tools.tool import Tool

Called = tuple[str, dict[str, Any]]
"""The name and the arguments of a call."""
_ALPHANUMERIC = string.ascii_letters + string.digits


class Family(abc.ABC):
    """name: of --tool-parser. opening: the mark that calls begin with anywhere in a text. delimiters: special
    tokens that the parser must see as text. stops: special tokens that end an answer, whatever the model's
    files say. reads_reasoning: the parser is for every answer, and reads the reasoning, too. around: marks
    that stand around content, and are left out. content_mark: what the prompt has to end with where the
    answer is content from its beginning.
    """

    name: str
    opening: str = ""
    delimiters: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    reads_reasoning: bool = False
    around: tuple[str, ...] = ()
    content_mark: str = ""

    def new_id(self) -> str:
        """An id for a call, as the family's templates accept it."""
        return "call_" + secrets.token_hex(12)

    @property
    def openings(self) -> tuple[str, ...]:
        """All marks that calls may begin with anywhere in a text."""
        return (self.opening,) if self.opening else ()

    @property
    def reads_answers(self) -> bool:
        """Whether an answer without calls has to be read, too."""
        return self.reads_reasoning or bool(self.around)

    @abc.abstractmethod
    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        """Content and calls."""

    @abc.abstractmethod
    def written(self, calls: Sequence[Called]) -> str:
        """Calls as the model writes them, for templates that do not show any."""

    @abc.abstractmethod
    def rules(self, tools: Sequence[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        """Rules of llguidance's Lark: `calls` is one call of `tools` or, if `parallel`, several; `block` is
        what follows the opening, to the end of what belongs to it. Raises RequestError where a tool's schema
        has no form here.
        """

    def free_rules(
        self, tools: Sequence[Tool], token_of: TokenOf, reasoning: Sequence[str], *, parallel: bool
    ) -> str:
        """Rules of a whole answer from `start` on: text, and calls that hold to the schemas of tools that are
        strict. reasoning: marks that may be in the text."""
        start = free_start(self.opening, self.delimiters, (*reasoning, *self.around), token_of)
        return start + self.rules(held_tools(tools), token_of, parallel=parallel)

    def content_rule(self, token_of: TokenOf) -> str:
        """The text before content, as symbols beside those rules; "" for nothing."""
        return symbols(self.content_mark, self.delimiters, token_of)

    def reasoning_rules(self, token_of: TokenOf) -> str:
        """Rules of which `before` is the reasoning before content, and what content begins with; "" where the
        family does not read reasoning."""
        del token_of
        return ""

    def history(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Messages in the form that the family's templates take."""
        return messages


def named_json(called: Called, key: str = "arguments") -> str:
    """A call as a JSON object. key: of its arguments."""
    return json.dumps({"name": called[0], key: called[1]}, ensure_ascii=False)


def nine_letters() -> str:
    """Mistral's templates refuse an id of any other form."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))
