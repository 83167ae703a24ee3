"""Random grammars: patterns, schemas, and rules of both forms."""

from __future__ import annotations

import json
from typing import Any

from firelane.wire.frames import Grammar
from fuzz.draw import Draw

ATOMS = (
    *("a", "[a-z]", r"\w", ".", "(a|b)", "(?:ab)", r"[^\x00]", "é", r"\d", "", r"\b", "^", "$", r"\s", r"\S"),
    *(r"\p{L}", r"\p{Lu}", r"\P{N}", r"\p{Greek}", r"\p{Script=Han}", r"[^\p{L}\d]", r"[\p{Ll}&&[^a-f]]"),
    *(r"\u{1F600}", r"\x{10FFFF}", r"[\u0000-\u{10ffff}]", "😀", "漢", r"[α-ω]", r"\u00e9", r"[[:alpha:]]"),
    *("(?i:straße)", "(?s:.)", "(?x: a b # c\n)", "(?P<n>a)", r"\1", "(?=a)", "(?!a)", "(?<=a)", "(?>a)"),
    *("[", "]", "{", "(", ")", "*", r"\\", r"\/", "[]", "[^]", "{1", "a{2,1}", r"\Q.\E", r"\Z", r"\A"),
)
COUNTS = ("*", "+", "?", "*?", "+?", "??", "{2}", "{0,}", "{3,}", "{0}", "{0,0}", "{1000}", "{99999}")
NAMES = ("a", "b", "", "é", 'a"b', "a\\b", "\n", "$ref", "a b", "😀", "x" * 100)
FORMATS = (
    "date",
    "date-time",
    "time",
    "email",
    "uuid",
    "ipv4",
    "ipv6",
    "uri",
    "hostname",
    "regex",
    "nonsense",
)
LEAVES: tuple[Any, ...] = (
    *({"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "null"}, {}, True, False),
    *({"enum": [1, "a", None, {"b": [1.5]}]}, {"const": {"a": ["é", 1e300]}}, {"enum": []}, {"type": []}),
    *({"type": ["string", "null"]}, {"type": "integer", "minimum": -5, "exclusiveMaximum": 10**30}),
    *({"type": "number", "multipleOf": 0.01}, {"type": "number", "minimum": 0.1, "maximum": 0.2}),
    *({"type": "string", "minLength": 3, "maxLength": 10**9}, {"type": "nothing"}, [], "a", 1, None),
    *({"not": {}}, {"x-guidance": {"whitespace_flexible": True}}, {"description": "\u0000"}),
)
REFERENCES = (
    "#",
    "#/$defs/a",
    "#/$defs/b",
    "#/definitions/a",
    "#/properties/a",
    "#/$defs/none",
    "http://x/y",
)


def grammar(draw: Draw) -> Grammar:
    kind = draw.choice(("regex", "json_schema", "json_schema", "lark", "gbnf"))
    if kind == "regex":
        return Grammar("regex", pattern(draw))
    if kind == "json_schema":
        return Grammar("json_schema", json.dumps(whole_schema(draw), ensure_ascii=draw.chance() < 0.5))
    return Grammar("lark", lark(draw)) if kind == "lark" else Grammar("gbnf", gbnf(draw))


def pattern(draw: Draw, depth: int = 0) -> str:
    if depth > 4 or draw.chance() < 0.2:
        return draw.choice(ATOMS)
    one, other = pattern(draw, depth + 1), pattern(draw, depth + 1)
    low, high = sorted((draw.choice((0, 1, 3, 50, 300)), draw.choice((1, 5, 100, 1000))))
    forms = (
        *(one + other, f"({one}|{other})", f"({one}){{{low},{high}}}", f"(?:{one}){draw.choice(COUNTS)}"),
        *(f"^({one})$", f"(?i)({one})", f"[{one}{other}]", f"({one}|{other}|{one}{other})+"),
    )
    return draw.choice(forms)


def whole_schema(draw: Draw) -> Any:
    """With definitions, which may refer to themselves and each other; sometimes a wide object."""
    if draw.chance() < 0.1:
        return wide(draw)
    made = schema(draw)
    if isinstance(made, dict) and draw.chance() < 0.7:
        made = {
            **made,
            "$defs": {"a": schema(draw, 2), "b": {"anyOf": [schema(draw, 3), {"$ref": "#/$defs/a"}]}},
        }
        made["definitions"] = draw.choice(({}, {"a": schema(draw, 3)}, []))
    return made


def schema(draw: Draw, depth: int = 0) -> Any:
    if depth > 4 or draw.chance() < 0.15:
        return draw.choice((*LEAVES, {"$ref": draw.choice(REFERENCES)}, {"$ref": "#/$defs/a"}))
    one, other = schema(draw, depth + 1), schema(draw, depth + 1)
    return draw.choice(
        (
            _object(draw, one, other),
            {"type": "array", "items": one, "minItems": draw.choice((0, 2, 5, 10**6)), "maxItems": 9},
            {"type": "array", "prefixItems": [one, other], "items": draw.choice((False, other))},
            {draw.choice(("anyOf", "oneOf", "allOf")): [one, other]},
            {"anyOf": [one, {"$ref": "#"}, {"type": "array", "items": {"$ref": draw.choice(REFERENCES)}}]},
            {"type": "string", "pattern": pattern(draw, 2), "maxLength": draw.choice((0, 7, 10**6))},
            {"type": "string", "format": draw.choice(FORMATS)},
            {"type": "object", "additionalProperties": one, "patternProperties": {pattern(draw, 3): other}},
            {**one, **other} if isinstance(one, dict) and isinstance(other, dict) else one,
        )
    )


def _object(draw: Draw, one: Any, other: Any) -> dict[str, Any]:
    first, second = draw.choice(NAMES), draw.choice(NAMES)
    return {
        "type": "object",
        "properties": {first: one, second: other, "a": one},
        "required": draw.choice(([], [first], [first, second], ["missing"], [first, first])),
        "additionalProperties": draw.choice((False, True, other)),
        "minProperties": draw.choice((0, 0, 0, 1, 5)),
    }


def wide(draw: Draw) -> dict[str, Any]:
    """Many optional fields: a grammar of its own form."""
    values = [schema(draw, 4) for _ in range(3)]
    names = [f"{draw.choice(NAMES)}{i}" for i in range(draw.choice((64, 70, 200)))]
    return {
        "type": "object",
        "properties": {name: draw.choice(values) for name in names},
        "required": draw.sample(names, draw.choice((0, 1, 5))),
        "additionalProperties": False,
        "$defs": {"a": schema(draw, 3), "b": {"type": "null"}},
    }


def lark(draw: Draw) -> str:
    parts = (
        *("r0", "r1", "r2", "T0", "T1", "/a+/", '"b"', '"é"i', "(r0 | T1)?", "r1*", "T0~2..5", "[r2]", "r0+"),
        *(f"/{pattern(draw, 3)}/", f"%json {json.dumps(schema(draw, 4))}", "<|im_end|>", "<[1-5]>", '""'),
        *('%regex { "substring_chars": "abc" }', "(T0 T1){3,}", "/a/ /b/ | r1", "@other", "missing"),
    )

    def body(count: int) -> str:
        return " ".join(draw.choice(parts) for _ in range(count))

    rules = [f"r{i}: {body(3)}" + (f"\n  | {body(2)}" if draw.chance() < 0.5 else "") for i in range(3)]
    terms = (
        *('"x"', "/[0-9]+/", "T1 /y/", "/a*/ & ~/aa/", "~(/b/)", f"/{pattern(draw, 3)}/", '"a".."f"', "T0"),
        *("/(?s:.)+/ & ~/[^]*x[^]*/", "T1{2,50}"),
    )
    ends = (
        "",
        "%ignore /[ \\t]+/",
        "%ignore T0",
        "%import common.INT",
        "%llguidance {}",
        "# end",
        "start: r1",
    )
    lines = [f"start: {body(2)}", *rules, f"T0: {draw.choice(terms)}", f"T1: {draw.choice(terms)}"]
    return "\n".join([*lines, draw.choice(ends)])


def gbnf(draw: Draw) -> str:
    parts = (
        *("r0", "r1", '"a"', "[a-z]", "[^\\n]", "[\\x00-\\U0010ffff]", '"é\\u00e9"', "(r0 | r1)*", "r1?"),
        *('"a"{2,300}', "[0-9]+", ".", '"\\""', "[α-ω]", "missing", "# end\n", "()", "r1{3}"),
    )

    def body() -> str:
        return " ".join(draw.choice(parts) for _ in range(draw.between(1, 4)))

    return f"root ::= {body()}\nr0 ::= {body()} | {body()}\nr1 ::= {body()}\n"
