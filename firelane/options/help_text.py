"""The help of a command's options: a short one, and one of a single group."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator

from firelane.options.command_line import help_text
from firelane.options.declared import Declared
from firelane.options.option import Group
from firelane.options.option_set import OptionSet

COLUMN = 30
"""The column in which the text of an option begins."""
CLAUSES = [re.compile(pattern) for pattern in ("; ", r" \(|, (?=[a-z])", ": ")]
"""Places at which a text may end, the better ones first."""


def short_help(options: OptionSet) -> str:
    """A line for each option that is given often, and the names of the others."""
    lines: list[str] = []
    for group, members in options.by_group():
        given = [one for one in members if not one.option.file]
        if group.common:
            lines += [f"{group.title}:", *(_line(one) for one in given), ""]
    lines.append("more, each told by --help=GROUP, all by --help-all:")
    for group, members in options.by_group():
        if not group.common:
            lines += _names(group, members)
    keys = sum(one.option.file for one in options.by_key.values())
    if keys:
        lines.append(f"{keys} options of these groups are keys of a file alone (--config FILE).")
    return "\n".join(lines) + "\n"


def group_help(group: Group, members: list[Declared]) -> str:
    """All options of a group, also those of files alone."""
    lines = [f"{group.title}:", *([f"  {group.about}", ""] if group.about else [])]
    for one in members:
        name = f"  {one.key} (a key of files alone)" if one.option.file else _name(one)
        text = textwrap.wrap(help_text(one).replace("%%", "%"), _width() - COLUMN)
        first = text.pop(0) if len(name) < COLUMN - 1 else ""
        lines.append(f"{name:<{COLUMN}}{first}".rstrip())
        lines += [f"{'':<{COLUMN}}{line}" for line in text]
    return "\n".join(lines) + "\n"


def _width() -> int:
    return min(100, shutil.get_terminal_size().columns)


def _name(one: Declared) -> str:
    return f"  {one.flag}" if one.kind is bool else f"  {one.flag} {one.metavar}"


def _names(group: Group, members: list[Declared]) -> list[str]:
    flags = " ".join(one.flag for one in members if not one.option.file)
    return _wrapped(f"  {group.name:<{COLUMN - 4}}", flags)


def _wrapped(begin: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _width(),
        initial_indent=f"{begin:<{COLUMN}}",
        subsequent_indent=" " * COLUMN,
        break_on_hyphens=False,
    )


def _line(one: Declared) -> str:
    name = _name(one)
    if len(name) > COLUMN - 2:
        name = f"  {one.flag}"
    room = _width() - COLUMN
    default = f" ({one.default_text})" if one.default_text else ""
    text = next((text for text in _shorter(one.option.help, room) if len(text + default) <= room), None)
    return f"{name:<{COLUMN}}{next(_shorter(one.option.help, room)) if text is None else text + default}"


def _shorter(text: str, room: int) -> Iterator[str]:
    """The text, or its longest beginnings of whole clauses, that have room; at last what has."""
    if len(text) <= room:
        yield text
    for clause in CLAUSES:
        ends = [match.start() for match in clause.finditer(text) if match.start() <= room]
        yield from (text[:end] for end in reversed(ends))
    yield textwrap.shorten(text, room, placeholder=" ...")
