"""Lark grammars of texts that a regular expression can say, as one: formats of calls hold patterns of
strings, also of those that are written as JSON. (Lark's syntax: lark-parser, docs/grammar.md)"""

from __future__ import annotations

import re
from typing import Any, NoReturn

from firelane.api.patterns import MAX_PATTERN_CHARS
from firelane.text.tools.parameters import refused

MAX_DEPTH = 64
MAX_TIMES = 1000
_TOKENS = re.compile(
    r"""(?P<space>[ \t\f\r]+|//[^\n]*|\\\n)
    |(?P<line>\n)
    |(?P<string>"(?:[^"\\\n]|\\.)*"i?)
    |(?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/[a-z]*)
    |(?P<name>[?!]*[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>[0-9]+)
    |(?P<sign>->|\.\.|[:|()\[\]?*+~.{},%])""",
    re.VERBOSE,
)
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")
_INTEGER = "[0-9]+"
_DECIMAL = rf"(?:{_INTEGER}\.[0-9]*|\.{_INTEGER})"
_FLOAT = rf"(?:{_INTEGER}[eE][+-]?{_INTEGER}|{_DECIMAL}(?:[eE][+-]?{_INTEGER})?)"
COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": _INTEGER,
    "SIGNED_INT": f"[+-]?{_INTEGER}",
    "DECIMAL": _DECIMAL,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?{_FLOAT}",
    "NUMBER": f"(?:{_FLOAT}|{_INTEGER})",
    "SIGNED_NUMBER": f"[+-]?(?:{_FLOAT}|{_INTEGER})",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[_a-zA-Z][_a-zA-Z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
}
"""Terminals of `%import common`."""


def pattern_of_lark(text: str, tool: str) -> str:
    """A regular expression of the grammar's texts, without anchors. tool: names it in errors. Raises
    RequestError where the grammar is wrong, recursive, or has a part that no expression says."""
    reader = _Reader(text, tool)
    try:
        return _Grammar(reader).pattern("start", ())
    except RecursionError:
        reader.fail("too much of it is in each other")


class _Reader:
    """The tokens of a grammar. Kinds: of _TOKENS; "" behind the last one."""

    def __init__(self, text: str, tool: str) -> None:
        self._tool, self._at = tool, 0
        self._tokens: list[tuple[str, str]] = []
        place = 0
        while place < len(text):
            found = _TOKENS.match(text, place)
            if found is None:
                self.fail(f"'{text[place : place + 20]}' is no part of Lark that is known")
            if found.lastgroup != "space":
                self._tokens.append((found.lastgroup or "", found[0]))
            place = found.end()

    def fail(self, why: str) -> NoReturn:
        raise refused(f"the grammar of '{self._tool[:64]}' cannot be held in this model's calls: {why}")

    @property
    def kind(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    @property
    def word(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def next(self) -> str:
        word = self.word
        self._at += 1
        return word

    def takes(self, sign: str) -> bool:
        """Whether the sign comes next, which is then taken."""
        found = self.kind == "sign" and self.word == sign
        self._at += found
        return found

    def needs(self, sign: str) -> None:
        if not self.takes(sign):
            self.fail(f"'{sign}' is missing before '{self.word[:20]}'")

    def skip_lines(self, before: str = "") -> None:
        """Take the ends of lines, where `before` follows them, or anything if that is empty."""
        at = self._at
        while self.kind == "line":
            self._at += 1
        if before and not (self.kind == "sign" and self.word == before):
            self._at = at


class _Grammar:
    """Rules, each with the tokens' place of its body, of which patterns are made as they are asked for."""

    def __init__(self, reader: _Reader) -> None:
        self._reader = reader
        self._parts: dict[str, _Part] = {}
        self._patterns: dict[str, str] = {}
        reader.skip_lines()
        while reader.kind:
            self._statement()
            reader.skip_lines()

    def _statement(self) -> None:
        reader = self._reader
        if reader.takes("%"):
            self._import()
            return
        if reader.kind != "name":
            reader.fail(f"a rule begins with its name, not with '{reader.word[:20]}'")
        name = reader.next().lstrip("?!")
        if reader.takes("."):
            reader.next()
        reader.needs(":")
        if name in self._parts:
            reader.fail(f"two rules have the name '{name[:40]}'")
        self._parts[name] = self._choice(0)

    def _import(self) -> None:
        reader, word = self._reader, self._reader.next()
        if word != "import" or reader.next() != "common":
            reader.fail(f"'%{word[:20]}' is not taken, but '%import common'")
        if not reader.takes("."):
            reader.fail("'%import common' names one terminal behind a dot")
        name = reader.next()
        if name not in COMMON:
            reader.fail(f"'common.{name[:40]}' is not known")
        own = reader.next() if reader.takes("->") else name
        self._patterns[own] = COMMON[name]

    def _choice(self, depth: int) -> _Part:
        reader = self._reader
        if depth > MAX_DEPTH:
            reader.fail(f"more than {MAX_DEPTH} groups are in each other")
        cases = [self._row(depth)]
        while True:
            reader.skip_lines("" if depth else "|")
            if not reader.takes("|"):
                return "|", cases
            cases.append(self._row(depth))

    def _row(self, depth: int) -> _Part:
        reader, made = self._reader, list[_Part]()
        while True:
            if depth:
                reader.skip_lines()
            opens = reader.kind == "sign" and reader.word in "(["
            if reader.kind not in ("name", "string", "regex") and not opens:
                break
            made.append(self._times(self._atom(depth)))
        if reader.takes("->"):
            reader.next()
        return "", made

    def _atom(self, depth: int) -> _Part:
        reader = self._reader
        for first, last in ("()", "[]"):
            if reader.takes(first):
                inner = self._choice(depth + 1)
                reader.needs(last)
                return inner if first == "(" else ("?", [inner])
        kind, word = reader.kind, reader.next()
        if kind == "name":
            return "name", [word]
        if kind == "regex":
            return "text", [self._regex(word)]
        if reader.takes(".."):
            first, last = self._string(word), self._string(reader.next())
            if len(first) != 1 or len(last) != 1:
                reader.fail(f"{word[:20]}.. does not stand between two characters")
            return "text", [f"[{_in_class(first)}-{_in_class(last)}]"]
        said = _SPECIAL.sub(r"\\\g<0>", self._string(word.removesuffix("i"))).replace("\n", "\\n")
        return "text", [f"(?i:{said})" if word.endswith("i") else f"(?:{said})"]

    def _times(self, atom: _Part) -> _Part:
        reader = self._reader
        for sign in "?*+":
            if reader.takes(sign):
                return sign, [atom]
        if reader.takes("~"):
            fewest = self._count()
            return f"{{{fewest},{self._count() if reader.takes('..') else fewest}}}", [atom]
        if reader.takes("{"):
            fewest = self._count()
            most = str(fewest)
            if reader.takes(","):
                most = str(self._count()) if reader.kind == "number" else ""
            reader.needs("}")
            return f"{{{fewest},{most}}}", [atom]
        return atom

    def _count(self) -> int:
        reader, word = self._reader, self._reader.word
        if reader.kind != "number" or len(word) > 4 or int(word) > MAX_TIMES:
            reader.fail(f"'{word[:20]}' is no number of times up to {MAX_TIMES}")
        return int(reader.next())

    def _string(self, word: str) -> str:
        if len(word) < 3 or word[0] != '"' or word[-1] != '"':
            self._reader.fail(f"{word[:20]} is no text of one character or more")
        return re.sub(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", _unescaped, word[1:-1])

    def _regex(self, word: str) -> str:
        body, _, flags = word[1:].rpartition("/")
        if set(flags) - set("isu"):
            self._reader.fail(f"flags '{flags[:20]}' of a regular expression are not taken")
        body = body.replace("\\/", "/")
        flags = flags.replace("u", "")
        return f"(?{flags}:{body})"

    def pattern(self, name: str, within: tuple[str, ...]) -> str:
        """The pattern of a rule. within: the rules that it is a part of."""
        if name not in self._patterns:
            if name not in self._parts:
                self._reader.fail(f"there is no rule '{name[:40]}'")
            if name in within or len(within) > MAX_DEPTH:
                self._reader.fail(f"its rule '{name[:40]}' is a part of itself: write it without recursion")
            self._patterns[name] = self._said(self._parts[name], (*within, name))
        return self._patterns[name]

    def _said(self, part: _Part, within: tuple[str, ...]) -> str:
        kind, inner = part
        if kind == "text":
            return inner[0]
        if kind == "name":
            return self.pattern(inner[0].lstrip("?!"), within)
        said = [self._said(one, within) for one in inner]
        text = "|".join(said) if kind == "|" else "".join(said)
        whole = text if kind == "" else f"(?:{text}){'' if kind == '|' else kind}"
        if len(whole) > MAX_PATTERN_CHARS:
            self._reader.fail(f"as a regular expression it has more than {MAX_PATTERN_CHARS} characters")
        return whole


_Part = tuple[str, list[Any]]
"""A kind and what it is of. Kinds: "text", of a pattern; "name", of a rule's name; "|", of cases; "", of what
follows each other; else how often the one part comes."""


def _in_class(char: str) -> str:
    """A character within brackets."""
    return f"\\{char}" if char in "\\[]^-&~" else char


def _unescaped(found: re.Match[str]) -> str:
    said = found[1]
    if len(said) > 1:
        return chr(int(said[1:], 16))
    return {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "b": "\b"}.get(said, said)
