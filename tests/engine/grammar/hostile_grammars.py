"""Grammars that are wrong, too large, or made to take for ever. Each: a name, the kind, the text, and a part
of what is answered; None where it is taken."""

from __future__ import annotations

import json


def schema(**keywords: object) -> str:
    return json.dumps(keywords)


def nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + "{}" + "}" * depth


def references(count: int, form: str) -> str:
    """A chain of definitions; `form` is made of the name of the next one."""
    chain = ",".join(
        f'"d{i}":' + form.replace("NEXT", f'{{"$ref":"#/$defs/d{i + 1}"}}') for i in range(count)
    )
    return f'{{"$defs":{{{chain},"d{count}":{{"type":"string"}}}},"$ref":"#/$defs/d0"}}'


def rules(count: int, form: str) -> str:
    """A chain of Lark rules; `form` is made of the name of the next one."""
    return (
        "start: r0\n"
        + "".join(f"r{i}: {form.replace('NEXT', f'r{i + 1}')}\n" for i in range(count))
        + (f'r{count}: "x"\n')
    )


def tokens(count: int, form: str) -> str:
    """Make the chain of `rules` from terminals, which become one regular expression."""
    return rules(count, form).replace("r", "R").replace("staRt", "start")


def conjunction(count: int) -> str:
    """A lexeme that none of so many words may be in. Each doubles the states that llguidance makes of it
    before it spends any fuel: 16 take 2 s, 18 take 7 s, 24 more than a minute."""
    return "start: S\nS: /.*/ " + " ".join(f'& ~(/.*/ "{i}" /.*/)' for i in range(count))


def tags(depth: int, content: str) -> str:
    """Structural tags in each other, with `content` in the innermost one."""
    return '{"type":"tag","begin":"<","content":' * depth + content + ',"end":">"}' * depth


ENDLESS = "start: T r\nr: /a/ /b/ | r T T r\nT: /a*/\n"
"""It compiles; a mask behind `aa` is never done, and takes memory."""
EXCLUDED = json.dumps({"type": "any_text", "excludes": [f"{i:b}" * 300 for i in range(64)]})
HOSTILE = [
    ("tags", "structural_tag", tags(16, '{"type":"regex","pattern":"((a{1,100}){1,100}){1,100}"}'), None),
    (
        "a grammar in tags",
        "structural_tag",
        tags(1, '{"type":"grammar","grammar":"start: start","syntax":"lark"}'),
        "tag",
    ),
    ("a pattern in tags", "structural_tag", tags(1, '{"type":"regex","pattern":"("}'), "the structural tag"),
    ("excluded texts", "structural_tag", EXCLUDED, None),
    (
        "very deep tags",
        "structural_tag",
        tags(5000, '{"type":"const_string","value":"a"}'),
        "the structural tag",
    ),
    ("nested repeats", "regex", r"((a{1,100}){1,100}){1,100}b", None),
    ("exact nested repeats", "regex", r"((a{100}){100}){100}", "the regular expression"),
    ("nested stars", "regex", r"(x+x+)+y|(a*)*b", None),
    ("memory of a window", "regex", r"(a|b)*a(a|b){40}", None),
    ("wide windows", "regex", r".{0,5000}x.{0,5000}", None),
    ("unicode windows", "regex", r"(\p{L}|\p{N}){1,500}(\p{L}\p{N}){500}", None),
    ("one long text", "regex", "a" * 60_000, "fixes 60000 bytes"),
    ("a million times", "regex", "a{1000000}", "regular expression"),
    ("too long", "regex", "a|" * 40_000, "has 80000 bytes: at most 65536"),
    ("deep groups", "regex", "(" * 20_000 + "a" + ")" * 20_000, "nested parentheses"),
    ("unclosed", "regex", "((", "unclosed group"),
    ("look-ahead", "regex", "(?=a)b", "look-ahead"),
    ("back reference", "regex", r"(a)\1", "backreferences are not supported"),
    ("word boundary", "regex", r"\bfoo\b", "lookarounds not supported"),
    ("nothing", "regex", "", "but the empty one"),
    ("impossible", "regex", r"[^\s\S]", ""),
    ("half a character", "regex", "\ud800", "half of a surrogate pair"),
    ("not JSON", "json_schema", "{", "JSON schema is not valid"),
    ("a list", "json_schema", "[]", "JSON schema is not valid"),
    ("unknown type", "json_schema", schema(type="strin"), "Invalid type: strin"),
    ("not", "json_schema", schema(**{"not": {"type": "string"}}), '"not"'),
    ("unique items", "json_schema", schema(type="array", uniqueItems=True), '"uniqueItems"'),
    ("if", "json_schema", schema(**{"if": {}, "then": {"maxLength": 2}}), '"if"'),
    ("dependent", "json_schema", schema(dependentRequired={"a": ["b"]}), '"dependentRequired"'),
    (
        "lenient by its own word",
        "json_schema",
        schema(**{"x-guidance": {"lenient": True}, "not": {}}),
        '"not"',
    ),
    ("unknown format", "json_schema", schema(type="string", format="iban"), "iban"),
    ("false", "json_schema", schema(anyOf=[]), ""),
    (
        "overlapping cases",
        "json_schema",
        schema(oneOf=[{"type": "integer"}, {"type": "number"}]),
        "use anyOf",
    ),
    ("remote reference", "json_schema", schema(**{"$ref": "https://example.org/s.json"}), "example.org"),
    ("circle", "json_schema", schema(**{"$ref": "#"}), ""),
    ("deep", "json_schema", nested(3000), "recursion limit"),
    ("chain of references", "json_schema", references(3000, "NEXT"), None),
    ("chain of arrays", "json_schema", references(1500, '{"type":"array","items":NEXT}'), None),
    ("doubling references", "json_schema", references(40, '{"anyOf":[NEXT,NEXT]}'), None),
    ("doubling conjunctions", "json_schema", references(30, '{"allOf":[NEXT,NEXT]}'), None),
    (
        "cases times cases",
        "json_schema",
        schema(
            allOf=[
                {"anyOf": [{"type": "integer", "multipleOf": i + 2}, {"type": "string", "maxLength": i + 5}]}
                for i in range(30)
            ]
        ),
        "simplify it",
    ),
    (
        "multiples of primes",
        "json_schema",
        schema(
            allOf=[{"type": "integer", "multipleOf": p} for p in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)]
        ),
        "",
    ),
    (
        "patterns at once",
        "json_schema",
        schema(allOf=[{"type": "string", "pattern": f"a.{{{i}}}b"} for i in range(40)]),
        "",
    ),
    ("ten thousand names", "json_schema", schema(enum=[f"v{i}" for i in range(8000)]), None),
    ("too many names", "json_schema", schema(enum=[f"value {i}" for i in range(20_000)]), "at most 131072"),
    ("a thousand million items", "json_schema", schema(type="array", minItems=10**9), None),
    ("very long string", "json_schema", schema(type="string", minLength=10**9), None),
    (
        "thousands of properties",
        "json_schema",
        schema(
            type="object",
            properties={f"p{i}": {"type": "null"} for i in range(4000)},
            additionalProperties=False,
        ),
        "JSON schema",
    ),
    ("chain of rules", "lark", rules(4000, "NEXT"), None),
    ("doubling rules", "lark", rules(40, "NEXT NEXT"), "Too many items"),
    ("chain of terminals", "lark", tokens(3000, 'NEXT "a"'), None),
    ("doubling terminals", "lark", tokens(40, "NEXT NEXT"), ""),
    ("ambiguous", "lark", 'start: s\ns: s s s | s s | "a" |', None),
    ("all may be empty", "lark", 'start: a*\na: b*\nb: c*\nc: "x"?', None),
    ("never ends at its third byte", "lark", ENDLESS, "takes more than 1 s"),
    ("no start", "lark", 'foo: "a"', "no start rule"),
    ("unknown rule", "lark", "start: foo", "unknown name"),
    ("unknown special token", "lark", "start: <|nope|>", "unknown special token"),
    ("deep brackets", "lark", "start: " + "(" * 5000 + '"a"' + ")" * 5000, "too deeply nested"),
    ("one complement", "lark", 'start: S\nS: /.*/ & ~(/.*/ ("a" | "b") /.*/)', None),
    ("complements", "lark", conjunction(24), "takes more than 1 s"),
    ("hundreds of complements", "lark", conjunction(500), "takes more than 1 s"),
    ("schema inside", "lark", 'start: %json {"uniqueItems": true}', "uniqueItems"),
    ("not GBNF", "gbnf", "foo", "Expected ::="),
    ("deep GBNF", "gbnf", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "is not valid"),
    ("many options", "gbnf", "root ::= " + '"a"? ' * 8000, "the grammar"),
    ("undefined GBNF rule", "gbnf", "root ::= " + "a" * 1000, "is not valid"),
]
