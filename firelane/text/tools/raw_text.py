"""Grammars of string values that are written without quotes, up to a mark that ends them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from firelane.request_limits import MAX_GRAMMAR_BYTES
from firelane.text.tools.call_rules import TokenOf, first_token, quoted, symbols
from firelane.text.tools.parameters import count, refused

DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
FORMATS = {
    "date": DATE,
    "time": TIME,
    "date-time": f"{DATE}T{TIME}",
    "uuid": r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "ipv4": rf"{BYTE}(\.{BYTE}){{3}}",
    "hostname": rf"{LABEL}(\.{LABEL})*",
    "email": rf"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@{LABEL}(\.{LABEL})+",
    "uri": r"[a-zA-Z][a-zA-Z0-9+.-]*:[!#-;=?-\[\]_a-z~]+",
}
ANY = r"(?s:.)"


class RuleWriter:
    """Rules of one grammar, named by their number. The same rule is written once. Raises RequestError where
    they are more text than an engine takes.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._names: dict[str, str] = {}
        self._size = 0

    @property
    def text(self) -> str:
        return "".join(f"{name}{body}\n" for body, name in self._names.items())

    def rule(self, body: str, options: str = "") -> str:
        return self._named(f"{options}: {body}", f"{self._prefix}{len(self._names)}")

    def terminal(self, body: str) -> str:
        return self._named(f": {body}", f"{self._prefix.upper()}{len(self._names)}")

    def _named(self, body: str, name: str) -> str:
        self._size += len(body)
        if self._size > 2 * MAX_GRAMMAR_BYTES:  # what is written twice counts twice here
            raise refused("their schemas are too large for this model's calls: give fewer or smaller ones")
        return self._names.setdefault(body, name)


class RawStrings:
    """Strings that end with `terminator`, as symbols that take it in. mark: the end of it, which no string
    holds. marks: of the format, which may be tokens and then end a string as no text does.
    """

    def __init__(
        self, terminator: str, mark: str, marks: Sequence[str], token_of: TokenOf, writer: RuleWriter
    ) -> None:
        self._writer = writer
        before, self._token, after = first_token(terminator, marks, token_of)
        self._end = _literally(before)
        self._tail = "" if self._token is None else f"<[{self._token}]> {symbols(after, marks, token_of)}"
        more = "+" if self._token is None else "*"
        self._never = f" & ~/{ANY}*{_literally(mark)}{ANY}{more}/"
        self.end = symbols(terminator, marks, token_of)

    def literal(self, text: str) -> str:
        return f"{quoted(text)} {self.end}" if text else self.end

    def matching(self, schema: dict[str, Any], *, no_json: bool = False) -> str:
        """A string of a schema without `enum`. no_json: one that begins as no array or object does. Raises
        RequestError.
        """
        held: list[str] = []
        if isinstance(schema.get("pattern"), str):
            held.append(_searched(schema["pattern"]))
        if isinstance(schema.get("format"), str):
            held.append(_format(schema["format"]))
        fewest, most = count(schema, "minLength") or 0, count(schema, "maxLength")
        optional = self._token is not None and not (fewest or held or self._end)
        bodies = [_lengths(fewest or int(optional), most), *held]
        terms = " & ".join(f"/(?:{body}){self._end}/" for body in bodies) + self._never
        terms += f" & ~/\\s*[{{\\[]{ANY}*/" if no_json else ""
        text = self._writer.terminal(terms)
        if self._token is None:
            return self._writer.rule(text, "[lazy]")
        return f"{text}{'?' if optional else ''} {self._tail}"


def _lengths(fewest: int, most: int | None) -> str:
    if most is None and fewest < 2:
        return ANY + "*+"[fewest]
    return f"{ANY}{{{fewest},{'' if most is None else most}}}"


def _searched(pattern: str) -> str:
    """A schema's pattern, which may match anywhere, as one of the whole text."""
    first = "" if pattern.startswith("^") else f"{ANY}*"
    last = "" if pattern.endswith("$") and not pattern.endswith("\\$") else f"{ANY}*"
    core = pattern.removeprefix("^")
    core = core if last else core[:-1]
    core = re.sub(r"\\.|/", lambda found: found[0] if len(found[0]) > 1 else "\\/", core, flags=re.DOTALL)
    return f"{first}(?:{core})".replace("\n", "\\n") + last


def _format(name: str) -> str:
    if name not in FORMATS:
        known = ", ".join(FORMATS)
        raise refused(
            f"format '{name[:40]}' cannot be held in this model's calls: leave it out, or give one of {known}"
        )
    return FORMATS[name]


def _literally(text: str) -> str:
    """A text in a regular expression."""
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)
