"""Structural tags: free text in which what follows a trigger is held to a form. The older form that vLLM
documents (`structures`, `triggers`), and xgrammar's (`format`; its docs/structural_tag)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from firelane.api.patterns import GrammarText, Pattern

MAX_TAGS = 128
MAX_TRIGGERS = 64
MAX_MARK_CHARS = 4096

Mark = Annotated[str, Meta(min_length=1, max_length=MAX_MARK_CHARS)]
Triggers = Annotated[list[Mark], Meta(max_length=MAX_TRIGGERS)]
End = Annotated[str, Meta(max_length=MAX_MARK_CHARS)]


class Structure(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """JSON of the schema between begin and end."""

    ALWAYS_STRICT: ClassVar[bool] = True

    begin: Mark
    schema: dict[str, Any]
    end: End


class _Format(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Field `type` names the kind."""

    ALWAYS_STRICT: ClassVar[bool] = True


class AnyTextFormat(_Format, tag="any_text"):
    """Any text that has none of `excludes` in it, up to the end of the tag around it."""

    excludes: Triggers = []


class ConstStringFormat(_Format, tag="const_string"):
    value: Mark


class JsonSchemaFormat(_Format, tag="json_schema"):
    json_schema: dict[str, Any]
    style: Literal["json"] = "json"


class RegexFormat(_Format, tag="regex"):
    pattern: Pattern


class GrammarFormat(_Format, tag="grammar"):
    grammar: GrammarText


class SequenceFormat(_Format, tag="sequence"):
    elements: Annotated[list[Format], Meta(min_length=1, max_length=MAX_TAGS)]


class OrFormat(_Format, tag="or"):
    elements: Annotated[list[Format], Meta(min_length=1, max_length=MAX_TAGS)]


class OptionalFormat(_Format, tag="optional"):
    content: Format


class StarFormat(_Format, tag="star"):
    content: Format


class PlusFormat(_Format, tag="plus"):
    content: Format


class TagFormat(_Format, tag="tag"):
    """end: a text, or texts of which one ends it; "" where the content ends by itself."""

    begin: End
    content: Format
    end: End | Annotated[list[Mark], Meta(min_length=1, max_length=MAX_TRIGGERS)]


class TriggeredTagsFormat(_Format, tag="triggered_tags"):
    """Free text that has none of `excludes` in it. Where a trigger is written, a tag that begins so goes on.
    at_least_one: it begins with a tag. stop_after_first: nothing follows the first tag."""

    triggers: Annotated[list[Mark], Meta(min_length=1, max_length=MAX_TRIGGERS)]
    tags: Annotated[list[TagFormat], Meta(min_length=1, max_length=MAX_TAGS)]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: Triggers = []


class TagsWithSeparatorFormat(_Format, tag="tags_with_separator"):
    """Tags and nothing else. at_least_one, stop_after_first: as above."""

    tags: Annotated[list[TagFormat], Meta(min_length=1, max_length=MAX_TAGS)]
    separator: End
    at_least_one: bool = False
    stop_after_first: bool = False


Format = (
    AnyTextFormat
    | ConstStringFormat
    | JsonSchemaFormat
    | RegexFormat
    | GrammarFormat
    | SequenceFormat
    | OrFormat
    | OptionalFormat
    | StarFormat
    | PlusFormat
    | TagFormat
    | TriggeredTagsFormat
    | TagsWithSeparatorFormat
)


Structures = Annotated[list[Structure], Meta(max_length=MAX_TAGS)]


class StructuralTag(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Either `structures` and `triggers`, or `format`."""

    type: Literal["structural_tag"] = "structural_tag"
    structures: Structures | None = None
    triggers: Triggers | None = None
    format: Format | None = None
