"""A TOML file whose complaints say where: line and key, and what was probably meant."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from firelane.errors import UsageError
from firelane.storage import read_regular

Keys = tuple[str, ...]
MOST_BYTES = 4 << 20
_HEADER = re.compile(r"^\s*\[\[?(?P<name>[^\]]+)\]\]?\s*(#.*)?$")
_KEY = re.compile(r"^\s*(?P<name>(\"[^\"]*\"|'[^']*'|[\w.\s-])+?)\s*=")


class TomlFile:
    """Read once. Raises UsageError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            text = read_regular(path, MOST_BYTES).decode()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            raise UsageError(f"{path}: cannot be read ({reason})") from error
        try:
            self.content: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path}: {_spelled(str(error))}") from error
        except RecursionError as error:
            raise UsageError(f"{path}: values are nested too deeply") from error
        self._lines: dict[Keys, int] = {}
        for number, keys in _places(text):
            self._lines.setdefault(keys, number)

    def error(self, keys: Keys, message: str) -> UsageError:
        """Error in the value at `keys`."""
        return UsageError(f"{self.path}: {self._line(keys)}{dotted(keys)}: {message}")

    def table(self, *keys: str) -> dict[str, Any]:
        """The table at `keys`, empty where there is none. Raises UsageError for another kind of value."""
        found: Any = self.content
        for depth, key in enumerate(keys):
            found = found.get(key, {})
            if not isinstance(found, dict):
                raise self.error(keys[: depth + 1], "it must be a table")
        return found

    def check_keys(self, keys: Keys, known: Iterable[str]) -> None:
        """Raises UsageError for a key of the table that is none of these."""
        known = list(known)
        for key in self.table(*keys):
            if key not in known:
                raise self.error((*keys, key), f"no such key{meant(key, known)}")

    def value(self, keys: Keys, kind: type | tuple[type, ...], what: str, default: Any = None) -> Any:
        """The value at `keys`. Raises UsageError where it is not of this kind, which `what` describes."""
        table = self.table(*keys[:-1])
        if keys[-1] not in table:
            return default
        value = table[keys[-1]]
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.error(keys, f"{value!r} is not {what}")
        return value

    def number(self, keys: Keys, default: Any = None, *, at_least: float = 0.0) -> Any:
        value = self.value(keys, (int, float), "a number", default)
        if value is not None and not at_least <= value < float("inf"):
            raise self.error(keys, f"{value:g} is not a number from {at_least:g} on")
        return value

    def texts(self, keys: Keys) -> tuple[str, ...] | None:
        """A list of strings; None where there is none."""
        values = self.value(keys, list, "a list of strings")
        if values is None:
            return None
        for value in values:
            if not isinstance(value, str) or not value:
                raise self.error(keys, f"{value!r} is not a name")
        return tuple(values)

    def _line(self, keys: Keys) -> str:
        """The nearest place that is known."""
        for depth in range(len(keys), 0, -1):
            if keys[:depth] in self._lines:
                return f"line {self._lines[keys[:depth]]}: "
        return ""


def meant(given: str, known: Iterable[str]) -> str:
    import difflib  # here: seldom needed

    near = difflib.get_close_matches(given, list(known), n=1)
    return f": did you mean {near[0]}?" if near else ""


def dotted(keys: Keys) -> str:
    return ".".join(key if re.fullmatch(r"[\w-]+", key) else f'"{key}"' for key in keys)


def _spelled(message: str) -> str:
    """tomllib's words, the line first."""
    what, _, where = message.partition(" (at ")
    return f"{where.rstrip(')')}: {what}" if where.startswith("line") else message


def _places(text: str) -> Iterator[tuple[int, Keys]]:
    """Lines of table headers and keys. A line inside of a long string may look like one: it comes after, or
    names what is not asked for."""
    table: Keys = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header is not None:
            table = _parsed(f"[{header['name']}]")
            yield from ((number, table[:depth]) for depth in range(1, len(table) + 1))
        elif (key := _KEY.match(line)) is not None:
            yield number, (*table, *_parsed(f"{key['name']} = 0"))


def _parsed(line: str) -> Keys:
    try:
        found: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return ()
    keys: list[str] = []
    while isinstance(found, dict) and found:
        (key, found), *_ = found.items()
        keys.append(key)
    return tuple(keys)
