"""Formats that a request may ask the answer's text to match: OpenAI's `response_format`, vLLM's
`structured_outputs`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from firelane.api.patterns import GrammarText, Pattern
from firelane.api.structural_tags import Format, Structures, Triggers

MAX_CHOICES = 1024
Choices = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=4096)]], Meta(min_length=1, max_length=MAX_CHOICES)
]


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The schema holds whatever `strict` says: an answer that does not match it cannot be made."""

    ALWAYS_STRICT: ClassVar[bool] = True

    name: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """structures, triggers, or format: of structural_tag."""

    ALWAYS_STRICT: ClassVar[bool] = True

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    structures: Structures | None = None
    triggers: Triggers | None = None
    format: Format | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One of json, regex, choice, grammar, json_object and structural_tag. grammar: Lark's syntax, or
    llama.cpp's GBNF (rules with `::=`). structural_tag: its JSON text. whitespace_pattern: what may stand
    between the parts of JSON, which is compact without. disable_additional_properties: false leaves object
    schemas open, which are closed otherwise.
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
    structural_tag: GrammarText | None = None
    whitespace_pattern: Pattern | None = None
