"""Random chat templates."""

from __future__ import annotations

from fuzz.draw import Draw

NUMBERS = ("0", "1", "-1", "7", "100", "99999", "10 ** 6", "2 ** 40", "messages | length", "1.5", "1e308")
VALUES = (
    *("messages", "tools", "'ab'", "[1, 2]", "{'a': 1}", "ns.t", "none", "bos_token", "loop.index", "loop"),
    *("messages[0]", "messages[-1]['content']", "m", "x", "true", "(1, 2, 3)", "'é\\n\\t'", "undefined_name"),
    *("messages[::2]", "messages[1:][::-1]", "f", "caller", "self", "range(9)", "dict(a=1)", "joiner(', ')"),
    *("cycler('a', 'b')", "namespace(a=1)", "varargs", "strftime_now('%Y')", "loop.previtem", "ns"),
)
FILTERS = (
    *("trim", "upper", "list", "length", "tojson", "string", "sort", "reverse", "unique", "first", "urlize"),
    *("join('x')", "batch(3)", "indent(99)", "center(9999)", "wordwrap(2)", "map('upper')", "last", "abs"),
    *("tojson(indent=999)", "tojson(indent='  ', sort_keys=true)", "tojson(separators=(1, 2))", "items", "e"),
    *(
        "selectattr('role', 'equalto', 'user')",
        "map(attribute='content')",
        "rejectattr('x')",
        "groupby('role')",
    ),
    *(
        "default('d', true)",
        "replace('a', 'bb' * 99)",
        "truncate(3)",
        "dictsort",
        "sum(start=[])",
        "int(base=1)",
    ),
    *(
        "slice(2)",
        "format(1, 2)",
        "xmlattr",
        "attr('__class__')",
        "filesizeformat",
        "pprint",
        "random",
        "safe",
    ),
    *("indent(2, first=true)", "round(400)", "max", "min", "wordcount", "striptags", "select('string')"),
    *("map('tojson')", "reject('none')", "float", "capitalize", "title", "nothing"),
)
METHODS = (
    *(
        "split('a')",
        "replace('a', 'bb')",
        "join(['a', 'b'])",
        "format(1, 2)",
        "items()",
        "encode()",
        "strip()",
    ),
    *("startswith('a')", "get('a', {})", "keys()", "append(1)", "update(a=1)", "__class__", "role", "pop()"),
    *(
        "rsplit('</think>', 1)",
        "format_map({})",
        "ljust(99999)",
        "zfill(9)",
        "index('a')",
        "count('')",
        "lower",
    ),
    *("__init__.__globals__", "mro()", "translate({97: 'x' * 999})", "next()", "splitlines()", "cycle(1, 2)"),
)
OPERATORS = ("+", "*", "~", "in", "not in", "==", "!=", "%", "**", "-", "//", "/", "and", "or", "<", ">=")
TESTS = (
    *("string", "mapping", "iterable", "defined", "none", "sameas none", "divisibleby 0", "in [1]", "number"),
    *("callable", "eq 1", "undefined", "sequence", "true", "odd", "nothing"),
)
BROKEN = (
    *("{%", "}}", "{{ raise_exception(ns.t) }}", "{% break %}", "{% continue %}", "\x00", "{% endfor %}"),
    *(
        "{{ raise_exception('a\\nb' * 999) }}",
        "{% include 'x' %}",
        "{% extends ns.t %}",
        "{% import 'y' as z %}",
    ),
    *(
        "{#",
        "{% do 1 %}",
        "{% trans %}",
        "{{ loop(1) }}",
        "{% set loop = 1 %}",
        "{{ super() }}",
        "{% else %}",
    ),
    *(
        "{% generation %}",
        "{{ f(f) }}",
        "{{ self.b() }}",
        "{%- -%}",
        "{{ [].__class__ }}",
        "{% set m.x = 1 %}",
    ),
)


def whole(draw: Draw) -> str:
    """A template with a namespace and a macro, of which what follows may make use."""
    macro = "{% macro f(x, y=1) %}" + template(draw, 2) + "{{ caller() if caller else x }}{% endmacro %}"
    start = "{% set ns = namespace(t='ab', n=0, l=[]) %}" + (macro if draw.chance() < 0.5 else "")
    return start + template(draw)


def expression(draw: Draw, depth: int = 0) -> str:
    if depth > 4 or draw.chance() < 0.3:
        return draw.choice(VALUES if draw.chance() < 0.6 else NUMBERS)
    one, other = expression(draw, depth + 1), expression(draw, depth + 1)
    return draw.choice(
        (
            f"({one} | {draw.choice(FILTERS)})",
            f"({one} | {draw.choice(FILTERS)} | {draw.choice(FILTERS)})",
            f"({one}).{draw.choice(METHODS)}",
            f"({one} {draw.choice(OPERATORS)} {other})",
            f"({one} is {draw.choice(('', 'not '))}{draw.choice(TESTS)})",
            f"[{one}, {other}]",
            f"({{{one}: {other}}})",
            f"({one})[{other}]",
            f"({one})[{other}:{one}]",
            f"({one} if {other} else {other})",
            f"f({one}, y={other})",
            f"range({one}, {other})",
        )
    )


def template(draw: Draw, depth: int = 0) -> str:
    return "".join(_piece(draw, depth) for _ in range(draw.between(1, 4)))


def _piece(draw: Draw, depth: int) -> str:
    one = expression(draw)
    inner = template(draw, depth + 1) if depth < 3 else "x"
    pieces = (
        "{{- " + one + " -}}",
        "{{ " + one + " }}",
        "{% set ns.t = " + one + " %}",
        "{% set ns.l = ns.l + [" + one + "] %}",
        "{% set x %}" + inner + "{% endset %}{{ x }}",
        "{% for m in " + one + " %}" + inner + "{% endfor %}",
        "{% for m in "
        + one
        + " if "
        + expression(draw, 3)
        + " %}"
        + inner
        + "{% else %}"
        + inner
        + "{% endfor %}",
        "{% for m in " + one + " recursive %}" + inner + "{{ loop([m]) }}{% endfor %}",
        "{% for m, x in " + one + " %}{{ loop.cycle(m, x) }}{% endfor %}",
        "{% for i in range(" + draw.choice(NUMBERS) + ") %}" + inner + "{% endfor %}",
        "{%- if "
        + one
        + " -%}"
        + inner
        + "{% elif "
        + expression(draw, 3)
        + " %}{% else %}"
        + inner
        + "{% endif %}",
        "{% macro f(x) %}" + inner + "{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{% call(x) f(" + one + ") %}" + inner + "{% endcall %}",
        "{% filter " + draw.choice(FILTERS) + " %}" + inner + "{% endfilter %}",
        "{% with x = " + one + " %}" + inner + "{% endwith %}",
        "{% generation %}" + inner + "{% endgeneration %}",
        "{% raw %}{{ " + one + "{% endraw %}{# " + one + " #}",
        "{% block b %}" + inner + "{% endblock %}",
        draw.choice(BROKEN),
    )
    return draw.choice(pieces)
