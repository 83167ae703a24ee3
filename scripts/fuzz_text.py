"""Random chat templates, conversations and grammars: seeded, and resumable from any case.

    python scripts/fuzz_text.py templates|grammars [--seed N] [--first I] [--cases N]

A case is a function of seed and number alone. What must hold: a template renders or is refused in one line
and in bounded time, and renders a plain conversation afterwards; a grammar compiles or is refused in the same
way, and the next one is compiled as before. A case that breaks this is printed, with what repeats it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from firelane.engine.grammar.compiler import GrammarCompiler
from firelane.engine.grammar.limits import GrammarLimits
from firelane.errors import RequestError, TokenizerError
from firelane.text.template_process import TemplateRenderer
from firelane.wire.frames import Grammar

EMBEDDED = Path(__file__).parents[1] / "firelane" / "models" / "embedded"
PATIENCE_S = 30.0
MAX_LINE = 1000
PLAIN = [{"role": "user", "content": "plain"}]
NUMBERS = ("0", "1", "-1", "7", "100", "99999", "10 ** 6", "2 ** 40", "messages | length")
VALUES = ("messages", "tools", "'ab'", "[1, 2]", "{'a': 1}", "ns.t", "none", "bos_token", "loop.index")
FILTERS = (
    *("trim", "upper", "list", "length", "tojson", "string", "sort", "reverse", "unique", "first", "urlize"),
    *(
        "join('x')",
        "batch(3)",
        "indent(99)",
        "center(9999)",
        "wordwrap(2)",
        "map('upper')",
        "tojson(indent=999)",
    ),
)
METHODS = ("split('a')", "replace('a', 'bb')", "join(['a', 'b'])", "format(1, 2)", "items()", "encode()")
ATOMS = ("a", "[a-z]", r"\w", ".", r"\p{L}", "(a|b)", "(?:ab)", r"[^\x00]", "é", r"\d", "", r"\b", "^", "$")


class Failure(NamedTuple):
    """A case that broke what must hold. repeat: the command's arguments."""

    case: int
    what: str
    source: str
    repeat: str


def expression(chance: random.Random, depth: int = 0) -> str:
    if depth > 4 or chance.random() < 0.3:
        return chance.choice(VALUES if chance.random() < 0.6 else NUMBERS)
    one, other = expression(chance, depth + 1), expression(chance, depth + 1)
    return chance.choice(
        (
            f"({one} | {chance.choice(FILTERS)})",
            f"({one}).{chance.choice(METHODS)}",
            f"({one} {chance.choice(('+', '*', '~', 'in', '==', '%', '**', '-', 'and', 'or', '<'))} {other})",
            f"[{one}, {other}]",
            f"({one})[{other}]",
            f"({one} if {other} else {other})",
        )
    )


def template(chance: random.Random, depth: int = 0) -> str:
    pieces: list[str] = []
    for _ in range(chance.randint(1, 4)):
        one = expression(chance)
        inner = template(chance, depth + 1) if depth < 3 else "x"
        pieces.append(
            chance.choice(
                (
                    "{{ " + one + " }}",
                    "{% set ns.t = " + one + " %}",
                    "{% for m in " + one + " %}" + inner + "{% endfor %}",
                    "{% for i in range(" + chance.choice(NUMBERS) + ") %}" + inner + "{% endfor %}",
                    "{% if " + one + " %}" + inner + "{% else %}" + inner + "{% endif %}",
                    "{% macro f(x) %}" + inner + "{{ f(x) }}{% endmacro %}{{ f(1) }}",
                    chance.choice(("{%", "}}", "{{ raise_exception(ns.t) }}", "{% break %}", "\x00")),
                )
            )
        )
    return "".join(pieces)


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


def fuzz_templates(seed: int, first: int = 0, cases: int = 100) -> Iterator[Failure]:
    """Those of the cases `first` … that fail."""
    for case in range(first, first + cases):
        source = template(random.Random(f"{seed}/{case}"))
        guarded = (
            "{% if messages[0].content == 'plain' %}ok{% else %}{% set ns = namespace(t='ab') %}" + source
        )
        what = _problem(lambda whole=guarded + "{% endif %}": _render(whole))
        if what:
            yield Failure(case, what, source, f"templates --seed {seed} --first {case} --cases 1")


def fuzz_grammars(seed: int, first: int = 0, cases: int = 100) -> Iterator[Failure]:
    """Those of the cases `first` … that fail."""
    vocab_size = json.loads((EMBEDDED / "config.json").read_text())["vocab_size"]
    compiler = GrammarCompiler(EMBEDDED, vocab_size, GrammarLimits())
    try:
        for case in range(first, first + cases):
            made = grammar(random.Random(f"{seed}/{case}"))
            what = _problem(lambda one=made: _compile(compiler, one))
            if what:
                yield Failure(case, what, made.text, f"grammars --seed {seed} --first {case} --cases 1")
    finally:
        compiler.close()


TARGETS: dict[str, Callable[[int, int, int], Iterator[Failure]]] = {
    "templates": fuzz_templates,
    "grammars": fuzz_grammars,
}


def _render(source: str) -> None:
    made = TemplateRenderer(source, {"bos_token": "<s>"})
    try:
        try:
            made.render_blocking([{"role": "user", "content": "other"}] * 3, [], {})
        finally:
            if made.render_blocking(PLAIN, [], {}) != "ok":
                raise AssertionError("a plain conversation is not rendered any more")
    finally:
        made.close()


def _compile(compiler: GrammarCompiler, made: Grammar) -> None:
    try:
        compiler.compile(made)
    finally:
        compiler.compile(Grammar("regex", "(yes|no)"))


def _problem(work: Callable[[], None]) -> str:
    """ "" where all is well."""
    began_s = time.monotonic()
    try:
        work()
    except (RequestError, TokenizerError) as error:
        if "\n" in str(error) or len(str(error)) > MAX_LINE or not str(error):
            return f"an error of {len(str(error))} characters: {str(error)[:200]!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    lasted_s = time.monotonic() - began_s
    return f"took {lasted_s:.1f} s" if lasted_s > PATIENCE_S else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=100)
    options = parser.parse_args()
    failed = 0
    for failure in TARGETS[options.target](options.seed, options.first, options.cases):
        failed += 1
        print(
            f"{failure.what}\n  repeat: scripts/fuzz_text.py {failure.repeat}\n  {failure.source[:500]}",
            flush=True,
        )
    print(f"{options.cases} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
