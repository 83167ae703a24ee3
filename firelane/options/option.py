"""The option of a field: its words, its values, and where it may be given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

MOST_WHOLE = 2**31 - 1
MOST_REAL = 1e6
"""The most that an option takes which has no limit of its own: seconds of eleven days, a pebibyte in GiB."""
N = TypeVar("N", int, float)
UNITS = {"": 1, "MiB": 1 << 20, "GiB": 1 << 30}
MOST_SHOWN = 40
"""Characters of a wrong value in an error."""


class OptionError(ValueError):
    """A value that an option does not take; the message says why."""


@dataclass(frozen=True)
class Group:
    """Options that the help tells together. name: one word, for `--help=NAME`."""

    name: str
    title: str
    about: str = ""
    common: bool = False
    """The short help tells each of its options, and of other groups the names alone."""
    table: str = "engine"
    """The table of a file that has the options of the group."""


@dataclass(frozen=True)
class Option:
    """The option of a field. Its type and its default are those of the field."""

    help: str
    group: Group
    flag: str = ""
    """The option's name without dashes; "": the field's, after "no-" where the field is true by default."""
    metavar: str = ""
    unit: str = ""
    """One of UNITS: the option's value is in this unit, the field's in bytes."""
    least: float | None = None
    """The smallest value that is taken, in the option's unit; None: anything above 0."""
    most: float | None = None
    """The largest value that is taken; None: MOST_WHOLE of whole numbers, MOST_REAL of others."""
    choices: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    """Values beside the choices that name something, as NAME=WHAT: any that begin so, and name it."""
    words: bool = False
    """Several values follow one option, in place of an option for each."""
    both: bool = False
    """The option of a field that is true or false has a form for each: --NAME and --no-NAME."""
    default: str = ""
    """Words for the default, where the field's own does not tell it."""
    file: bool = False
    """The option is a key of files alone: the command line does not have it."""
    see: str = ""
    """Page of the docs that says more, with its anchor."""
    read: Callable[[str], Any] | None = None
    """Reader of the option's text, where the field's type does not say how it is read. Raises OptionError."""

    def value(self, kind: type, text: str) -> Any:
        """The field's value that the option's text means. Raises OptionError."""
        if self.read is not None:
            return self.read(text)
        if kind in (int, float):
            return self._number(kind, text)
        if kind is Path:
            return Path(text).expanduser()
        self.check(text)
        return text

    def check(self, value: Any) -> None:
        """Raises OptionError for a value of the field that the option does not take."""
        if self.choices:
            if value not in self.choices and not self._is_named(value):
                known = ", ".join((*self.choices, *self.named))
                raise OptionError(f"{str(value)[:MOST_SHOWN]!r} is not one of {known}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            given = value / UNITS[self.unit] if self.unit else value
            within(f"{given:.12g}" if self.unit else f"{value}", given, self.least, self.most)

    def _is_named(self, value: Any) -> bool:
        name, _, what = value.partition("=") if isinstance(value, str) else ("", "", "")
        return bool(what.strip()) and any(one.partition("=")[0] == name for one in self.named)

    def _number(self, kind: type, text: str) -> int | float:
        if not self.unit:
            return within(text, number(text, kind), self.least, self.most)
        given = within(text, number(text, float), self.least, self.most)
        return max(1, int(given * UNITS[self.unit])) if given else 0


def number(text: str, kind: Callable[[str], N]) -> N:
    """The number that a text is, of this kind: int or float. Raises OptionError."""
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise OptionError(f"{text[:MOST_SHOWN]!r} is not {what}") from None


def within(text: str, value: N, least: float | None, most: float | None) -> N:
    """The value, where it is in the range that an option's `least` and `most` say. text: the value as it was
    given. Raises OptionError."""
    if most is None:
        most = MOST_WHOLE if isinstance(value, int) else MOST_REAL
    if value > most:
        raise OptionError(f"{text[:MOST_SHOWN]} is more than {most:,.12g}, the most that is taken")
    if least is None and not value > 0:
        raise OptionError(f"{text[:MOST_SHOWN]} is not a number above 0")
    if least is not None and not value >= least:
        raise OptionError(f"{text[:MOST_SHOWN]} is not {least:g} or more")
    return value
