"""Formats that a request may ask the answer's text to match: OpenAI's `response_format`, vLLM's
`structured_outputs`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

MAX_CHOICES = 1024
MAX_PATTERN_CHARS = 16 << 10
MAX_GRAMMAR_CHARS = 64 << 10

Pattern = Annotated[str, Meta(min_length=1, max_length=MAX_PATTERN_CHARS)]
GrammarText = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
Choices = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=4096)]], Meta(min_length=1, max_length=MAX_CHOICES)
]


class JsonSchemaFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The schema holds whatever `strict` says: an answer that does not match it cannot be made."""

    ALWAYS_STRICT: ClassVar[bool] = True

    name: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    ALWAYS_STRICT: ClassVar[bool] = True

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One of json, regex, choice, grammar and json_object. grammar: Lark's syntax, or llama.cpp's GBNF
    (rules with `::=`). whitespace_pattern: what may stand between the parts of JSON, which is compact
    without. disable_additional_properties: false leaves object schemas open, which are closed otherwise.
    """

    ALWAYS_STRICT: ClassVar[bool] = True

    json: str | dict[str, Any] | None = None
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_fallback: bool | None = None
    disable_additional_properties: bool | None = None
    structural_tag: Any = None
    whitespace_pattern: Pattern | None = None
