"""Options of configs on the command line of a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from firelane.options.declared import Declared
from firelane.options.option import OptionError
from firelane.options.option_set import OptionSet

if TYPE_CHECKING:
    import argparse


def add_options(parser: argparse.ArgumentParser, options: OptionSet) -> None:
    """Have the command take these options, but for those of files alone. An option that is not given leaves
    no value, so that the config's own default counts. A parser that tells its help in parts has a list
    `option_sets`, which gets them, too."""
    getattr(parser, "option_sets", []).append(options)
    for group, members in options.by_group():
        given = [one for one in members if not one.option.file]
        if given:
            target = parser.add_argument_group(group.title, group.about or None)
            for one in given:
                _add(target, one)


def _add(group: Any, one: Declared) -> None:
    import argparse

    common: dict[str, Any] = {"dest": one.key, "default": argparse.SUPPRESS, "help": help_text(one)}
    if one.is_switch:
        group.add_argument(one.flag, action="store_const", const=not one.default, **common)
    elif one.kind is bool:
        group.add_argument(one.flag, action=argparse.BooleanOptionalAction, **common)
    else:
        if one.many:
            common |= {"nargs": "+"} if one.option.words else {"action": "append"}
        group.add_argument(one.flag, type=reader(one.read), metavar=one.metavar, **common)


def help_text(one: Declared) -> str:
    """The help of an option, with its default."""
    default = f" (default: {one.default_text})" if one.default_text else ""
    return f"{one.option.help}{default}".replace("%", "%%")


def reader(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """The reader of a value as argparse wants it."""
    import argparse

    def read_text(text: str) -> Any:
        try:
            return read(text)
        except OptionError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read_text
