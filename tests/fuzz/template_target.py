"""Chat templates: each renders a conversation, or is refused in one short line in bounded
time, and renders a plain one afterwards.
"""

from __future__ import annotations

import random

from patience import patient

from firelane.text.template_process import TemplateRenderer, encoded

PLAIN = [{"role": "user", "content": "plain"}]
OTHER = [{"role": "user", "content": "other"}]
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


def run(draw: random.Random) -> None:
    source = "{% if messages[0].content == 'plain' %}ok{% else %}{% set ns = namespace(t='ab') %}"
    source += template(draw) + "{% endif %}"
    with patient(source):
        _render(source)


def _render(source: str) -> None:
    made = TemplateRenderer(source, {"bos_token": "<s>"})
    try:
        try:
            made.render_blocking(encoded(OTHER * 3, [], {}))
        finally:
            assert made.render_blocking(encoded(PLAIN, [], {})) == "ok"
    finally:
        made.close()


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
