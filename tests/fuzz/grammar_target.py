"""Grammars: each compiles or is refused in one line and bounded time; the next one compiles as before."""

from __future__ import annotations

import atexit
import functools
import json
import random
from pathlib import Path

from patience import patient

import firelane.models
from firelane.engine.grammar.compiler import GrammarCompiler
from firelane.engine.grammar.limits import GrammarLimits
from firelane.wire.frames import Grammar

EMBEDDED = Path(firelane.models.__file__).parent / "embedded"
ATOMS = ("a", "[a-z]", r"\w", ".", r"\p{L}", "(a|b)", "(?:ab)", r"[^\x00]", "é", r"\d", "", r"\b", "^", "$")


def run(draw: random.Random) -> None:
    made = grammar(draw)
    with patient(made.text):
        try:
            compiler().compile(made)
        finally:
            compiler().compile(Grammar("regex", "(yes|no)"))


@functools.cache
def compiler() -> GrammarCompiler:
    """One for all cases of this process."""
    vocab_size = json.loads((EMBEDDED / "config.json").read_text())["vocab_size"]
    made = GrammarCompiler(EMBEDDED, vocab_size, GrammarLimits())
    atexit.register(made.close)
    return made


def pattern(chance: random.Random, depth: int = 0) -> str:
    if depth > 4 or chance.random() < 0.2:
        return chance.choice(ATOMS)
    one, other = pattern(chance, depth + 1), pattern(chance, depth + 1)
    low, high = sorted((chance.choice((0, 1, 3, 50, 300)), chance.choice((1, 5, 100, 1000))))
    return chance.choice(
        (one + other, f"({one}|{other})", f"({one}){{{low},{high}}}", f"({one})*", f"({one})+?")
    )


def schema(chance: random.Random, depth: int = 0) -> object:
    if depth > 4 or chance.random() < 0.2:
        return chance.choice(
            ({"type": "string"}, {"type": "integer"}, {}, True, {"$ref": "#"}, {"enum": [1, "a"]})
        )
    one, other = schema(chance, depth + 1), schema(chance, depth + 1)
    return chance.choice(
        (
            {"type": "object", "properties": {"a": one, "b": other}, "required": ["a"]},
            {"type": "array", "items": one, "minItems": chance.choice((0, 5, 10**6))},
            {"anyOf": [one, other]},
            {"allOf": [one, other]},
            {"type": "string", "pattern": pattern(chance)},
            {"type": "object", "additionalProperties": one},
        )
    )


def grammar(chance: random.Random) -> Grammar:
    kind = chance.choice(("regex", "json_schema", "lark"))
    if kind == "regex":
        return Grammar("regex", pattern(chance))
    if kind == "json_schema":
        return Grammar("json_schema", json.dumps(schema(chance)))
    rules = [
        f"r{i}: {' '.join(chance.choice(('r0', 'r1', 'r2', '/a+/')) for _ in range(3))}" for i in range(3)
    ]
    return Grammar("lark", "\n".join(["start: r0 | r1", *rules, f"r3: /{pattern(chance)}/"]))
