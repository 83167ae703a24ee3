"""JSON schemas on their way into grammars: each copy that is made of one is JSON again, or it is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from firelane.api.reading.schemas import check_schema
from firelane.engine.grammar.wide_objects import lark_of
from firelane.errors import RequestError
from firelane.text.schemas.closed_schema import closed, held, not_held
from firelane.text.schemas.constraints import single_line
from firelane.text.schemas.typed_schema import typed
from firelane.text.tools.parameters import kinds_of
from fuzz.json_mutator import mutate_json
from fuzz.target import Target


def run(data: bytes) -> None:
    try:
        schema: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if not isinstance(schema, dict):
        return
    check_schema(schema, "schema")
    before = json.dumps(schema)
    for convert in (typed, held, closed, single_line):
        json.dumps(convert(schema))
    not_held([schema])
    kinds_of(schema, "a")
    lark_of(schema, {"whitespace_flexible": False})
    assert json.dumps(schema) == before, "the schema itself was changed"


TARGET = Target(
    run=run,
    mutate=mutate_json,
    refusals=(RequestError,),
    words=(
        *(
            b'{"type":"object","properties":{"a":{',
            b'"required":["a"]',
            b'"additionalProperties":false',
            b"null",
        ),
        *(
            b'"anyOf":[{',
            b'"allOf":[{',
            b'"oneOf":[{',
            b'"$ref":"#/$defs/a"',
            b'"$defs":{"a":{',
            b'"$ref":"#"',
        ),
        *(
            b'"patternProperties":{"a":',
            b'"propertyNames":{"enum":["a"]}',
            b'"maxProperties":1',
            b'"items":[',
        ),
        *(
            b'"enum":["a",1]',
            b'"const":',
            b'"type":["string","null"]',
            b'"format":"date"',
            b'"uniqueItems":true',
        ),
        *(b'"prefixItems":[', b'"minItems":', b'"not":{', b'"minimum":', b'"definitions":{', b'"type":null'),
    ),
)
