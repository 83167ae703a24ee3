"""The parser of a command: its help in parts, and what it says of a wrong option."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from firelane.options import Declared, OptionSet

INVALID_COMMAND = re.compile(r"^argument COMMAND: invalid choice: '([^']*)'")
MOST_LINES = 60
"""Lines of a help that is told as a whole; a longer one is told in parts."""


class CommandParser(argparse.ArgumentParser):
    """Parser that asks for the option or command that was probably meant. names: of all commands."""

    def __init__(self, *args: Any, names: Sequence[str] = (), **keywords: Any) -> None:
        super().__init__(*args, add_help=False, **keywords)
        self._names = names
        self.option_sets: list[OptionSet] = []
        """Options that fields of configs declare: `options.add_options` keeps them here."""
        text = "show this help (--help=GROUP: options of a group; --help-all: all of them), and end"
        self.add_argument(
            *("-h", "--help"), action=_Help, nargs="?", default=argparse.SUPPRESS, metavar="GROUP", help=text
        )
        self.add_argument(
            "--help-all", action=_Help, nargs=0, default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )

    def error(self, message: str, hint: str = "") -> NoReturn:
        """Two lines: what is wrong, and what to do, or where all options are told."""
        choice = INVALID_COMMAND.search(message)
        meant = _meant(choice[1], self._names) if choice else ""
        hint = hint or f"usage: {self.prog} --help tells the options"
        self.exit(2, f"{self.prog}: error: {message}{meant}\n{hint}\n")

    def refuse_unknown(self, unknown: list[str]) -> NoReturn:
        """End for options that nobody knows."""
        given = unknown[0].partition("=")[0]
        for one in self._declared():
            if one.flag == given and one.option.file:
                table = one.option.group.table
                self.error(
                    f"{given} is an option of files alone",
                    f"write {one.key} below [{table}] of a TOML file, and give --config FILE",
                )
        known = [name for action in self._actions for name in action.option_strings]
        self.error(f"unrecognized arguments: {' '.join(unknown)}{_meant(given, known)}")

    def name_parsers(self) -> None:
        """Have the namespace tell the parser of the command that was given: this one, or one below it."""
        self.set_defaults(parser=self)
        for action in self._actions:
            below = action.choices.values() if isinstance(action.choices, dict) else ()
            for sub in (sub for sub in below if isinstance(sub, CommandParser)):
                sub.name_parsers()

    def help_of(self, group: str | None) -> str:
        """The help of one group; of all where that is short, or a short one, without a known group."""
        if not self.option_sets:
            return self.format_help()
        from firelane.options.help_text import group_help, short_help

        for options in self.option_sets:
            for known, members in options.by_group():
                if group in (known.name, known.title):
                    return group_help(known, members)
        whole = self.format_help()
        if whole.count("\n") <= MOST_LINES:
            return whole
        parts = [f"usage: {self.prog} {self._operands()} [options]\n\n{self.description}\n\n"]
        formatter = self._get_formatter()
        for own in self._action_groups:
            if not self._is_declared(own.title):
                formatter.start_section(own.title)
                formatter.add_arguments(own._group_actions)
                formatter.end_section()
        parts.append(f"{formatter.format_help()}\n")
        return "".join([*parts, *map(short_help, self.option_sets)])

    def help_of_all(self) -> str:
        """The help of all options, also of those that are keys of files alone."""
        if not self.option_sets:
            return self.format_help()
        from firelane.options.help_text import group_help

        groups = (group for options in self.option_sets for group in options.by_group())
        alone = [(group, [one for one in members if one.option.file]) for group, members in groups]
        return "\n".join([self.format_help(), *(group_help(*one) for one in alone if one[1])])

    def _declared(self) -> Iterable[Declared]:
        return (one for options in self.option_sets for one in options.by_key.values())

    def _is_declared(self, title: str | None) -> bool:
        return any(group.title == title for one in self.option_sets for group, _ in one.by_group())

    def _operands(self) -> str:
        return " ".join(f"[{one.metavar}]" for one in self._actions if not one.option_strings)


class _Help(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: object,
        values: Any,
        option_string: str | None = None,
    ) -> NoReturn:
        del namespace
        assert isinstance(parser, CommandParser)
        is_all = option_string == "--help-all"
        print(parser.help_of_all() if is_all else parser.help_of(values or None), end="")
        parser.exit()


def _meant(given: str, known: Iterable[str]) -> str:
    import difflib  # here: seldom needed

    near = difflib.get_close_matches(given, known, n=1)
    return f": did you mean {near[0]}?" if near else ""
