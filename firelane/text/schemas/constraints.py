"""Constraints on the answer's text, as the one Grammar that the engine is told."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, cast

import msgspec

from firelane.api.formats import ResponseFormat, StructuredOutputs
from firelane.api.reading.schemas import check_schema
from firelane.api.sampling import SamplingFields, unsupported
from firelane.errors import RequestError
from firelane.request_limits import MAX_GRAMMAR_BYTES, MAX_SCHEMA_BYTES
from firelane.text.schemas.closed_schema import closed, held, not_held
from firelane.text.schemas.structural_tags import GBNF_RULE, schemas_in, tags_of_text, tags_text
from firelane.text.schemas.typed_schema import typed
from firelane.wire.frames import Grammar
from firelane.wire.sampling import WITH_SCHEMAS

ANY_OBJECT: dict[str, Any] = {"type": "object"}


def grammar_of(fields: SamplingFields) -> Grammar | None:
    """None where the text is free. Raises RequestError on more than one constraint, and on what is too
    large.
    """
    found = list(_constraints(fields))
    if len(found) > 1:
        names = ", ".join(f"`{name}`" for name, _ in found)
        raise RequestError(f"{names} ask for different things: give one of them", param=found[0][0])
    if not found:
        return None
    check_size(found[0][1], found[0][0])
    return found[0][1]


def schema_notes(fields: SamplingFields, of_tools: Iterable[dict[str, Any]] = ()) -> list[str]:
    """Names of keywords that the answer is not held to, of the schemas in checked fields and those
    `of_tools`."""
    form, asked = fields.response_format, fields.structured_outputs
    given = [
        None if form is None or form.json_schema is None else form.json_schema.schema,
        None if asked is None else asked.json,
        fields.guided_json,
        fields.json_schema,
    ]
    schemas = [schema for one in given if (schema := _schema(one)) is not None]
    schemas += of_tools
    if form is not None and form.type == "structural_tag":
        schemas += schemas_in(form)
    if asked is not None and asked.structural_tag is not None:
        schemas += schemas_in(tags_of_text(asked.structural_tag, "structured_outputs.structural_tag"))
    return not_held(schemas) if schemas else []


def _schema(given: Any) -> dict[str, Any] | None:
    """A schema as an object, also where it is given as text. None for what whoever compiles it refuses."""
    if isinstance(given, str):
        with contextlib.suppress(msgspec.DecodeError, RecursionError, UnicodeError):
            given = msgspec.json.decode(given)
    return cast("dict[str, Any]", given) if isinstance(given, dict) else None


def check_size(grammar: Grammar, param: str) -> None:
    """Raises RequestError where an engine would not take it for its length alone."""
    most = MAX_SCHEMA_BYTES if grammar.kind in WITH_SCHEMAS else MAX_GRAMMAR_BYTES
    size = len(grammar.text.encode("utf-8", "surrogatepass"))
    if size > most:
        raise RequestError(
            f"what the answer must match has {size} bytes: at most {most} are taken", param=param
        )


def single_line(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema for a place inside a grammar, with JSON on one line, spaced as Python writes it: a model
    that is made to write JSON could else go on with white space for ever. (llguidance, docs/json_schema.md)
    A schema that is the whole grammar is written without any.
    """
    spacing = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return {**closed(schema), "x-guidance": spacing}


def _constraints(fields: SamplingFields) -> Iterator[tuple[str, Grammar]]:
    yield from _response_format(fields)
    if fields.structured_outputs is not None:
        yield from _structured(fields.structured_outputs)
    older = StructuredOutputs(
        json=fields.guided_json,
        regex=fields.guided_regex,
        choice=fields.guided_choice,
        grammar=fields.guided_grammar,
    )
    yield from _kinds(older, "guided_")
    if fields.json_schema is not None:
        yield "json_schema", _json(fields.json_schema, "json_schema")
    yield from _kinds(StructuredOutputs(grammar=fields.grammar), "")
    if fields.bad_words:
        yield "bad_words", Grammar("lark", _without(fields.bad_words))
    if fields.allowed_token_ids is not None:
        yield "allowed_token_ids", Grammar("lark", _of_tokens(fields.allowed_token_ids))


def _response_format(fields: SamplingFields) -> Iterator[tuple[str, Grammar]]:
    form = fields.response_format
    if form is None:
        return
    if form.type == "structural_tag":
        text = tags_text(form, "response_format", _inner_schema)
        yield "response_format", Grammar("structural_tag", text)
        return
    _check_no_tags(form)
    if form.type == "text":
        return
    if form.type == "json_object":
        yield "response_format", _json(ANY_OBJECT, "response_format")
        return
    where = "response_format.json_schema"
    if form.json_schema is None:
        raise RequestError(f"`{where}` is missing", param=where, code="missing_parameter")
    if form.json_schema.schema is None:
        raise RequestError(f"`{where}.schema` is missing", param=f"{where}.schema", code="missing_parameter")
    yield "response_format", _json(form.json_schema.schema, f"{where}.schema")


def _structured(asked: StructuredOutputs) -> Iterator[tuple[str, Grammar]]:
    if asked.whitespace_pattern is not None and asked.json is None and not asked.json_object:
        raise unsupported("structured_outputs.whitespace_pattern")
    found = list(_kinds(asked, "structured_outputs."))
    if not found:
        raise RequestError(
            "`structured_outputs` asks for nothing: give one of json, regex, choice, grammar, json_object, "
            "structural_tag",
            param="structured_outputs",
        )
    yield from found


def _kinds(asked: StructuredOutputs, prefix: str) -> Iterator[tuple[str, Grammar]]:
    if asked.json is not None:
        yield f"{prefix}json", _json(asked.json, f"{prefix}json", asked)
    if asked.regex is not None:
        yield f"{prefix}regex", Grammar("regex", asked.regex)
    if asked.choice is not None:
        yield f"{prefix}choice", Grammar("lark", _alternatives(asked.choice))
    if asked.grammar is not None:
        kind = "gbnf" if GBNF_RULE.search(asked.grammar) else "lark"
        yield f"{prefix}grammar", Grammar(kind, asked.grammar)
    if asked.json_object:
        yield f"{prefix}json_object", _json(ANY_OBJECT, f"{prefix}json_object", asked)
    if asked.structural_tag is not None:
        where = f"{prefix}structural_tag"
        text = tags_text(tags_of_text(asked.structural_tag, where), where, _inner_schema)
        yield where, Grammar("structural_tag", text)


def _check_no_tags(form: ResponseFormat) -> None:
    """Raises RequestError where another format has fields of structural tags."""
    for name in ("structures", "triggers", "format"):
        if getattr(form, name) is not None:
            where = f"response_format.{name}"
            raise RequestError(f"`{where}` is of the type structural_tag: leave it out", param=where)


def _inner_schema(schema: dict[str, Any], where: str) -> dict[str, Any]:
    check_schema(schema, where)
    return single_line(typed(schema))


def _json(schema: str | dict[str, Any], where: str, asked: StructuredOutputs | None = None) -> Grammar:
    value: Any = schema
    if isinstance(schema, str):
        try:
            value = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"`{where}` is not valid JSON: {error}", param=where) from None
    if not isinstance(value, dict):
        raise RequestError(f"`{where}` is not a JSON schema: give an object", param=where)
    check_schema(value, where)
    value = typed(cast(dict[str, Any], value))
    keeps_open = asked is not None and asked.disable_additional_properties is False
    value = held(value) if keeps_open else closed(value)
    if asked is not None and asked.whitespace_pattern is not None:
        spacing = {"whitespace_flexible": True, "whitespace_pattern": asked.whitespace_pattern}
        value = {**value, "x-guidance": spacing}
    return Grammar("json_schema", json.dumps(value, ensure_ascii=False))


def _without(words: list[str]) -> str:
    """A Lark grammar of all texts in which none of these is."""
    found = "|".join("".join(f"\\x{{{ord(char):x}}}" for char in word) for word in dict.fromkeys(words))
    return f"start: TEXT\nTEXT: /(?s:.*)/ & ~BAD\nBAD: /(?s:.*({found}).*)/\n"


def _of_tokens(ids: list[int]) -> str:
    """A Lark grammar of all sequences of these tokens. Neighbours are named by their ends."""
    ranges: list[list[int]] = []
    for token in sorted(set(ids)):
        if ranges and token == ranges[-1][1] + 1:
            ranges[-1][1] = token
        else:
            ranges.append([token, token])
    named = ",".join(f"{first}-{last}" if first < last else str(first) for first, last in ranges)
    return f"start: <[{named}]>*\n"


def _alternatives(choices: list[str]) -> str:
    """A Lark grammar of these texts and no others. A Lark literal is written as a JSON text is."""
    return "start: " + " | ".join(json.dumps(choice) for choice in dict.fromkeys(choices)) + "\n"
